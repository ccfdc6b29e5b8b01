"""What is begun, taken and dropped, whatever the order in which groups finish."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.group_flow import GroupFlow, TooOld


class Stage(RuleBasedStateMachine):
    """A stage with its own books of what was begun, at which version, and what became of it."""

    @initialize(
        prompts=st.integers(1, 4),
        max_staleness=st.integers(0, 3),
        too_old=st.sampled_from(["drop", "wait"]),
        steps=st.integers(1, 8),
    )
    def begin(self, prompts: int, max_staleness: int, too_old: TooOld, steps: int) -> None:
        self.options: dict[str, Any] = {
            "prompts": prompts,
            "max_staleness": max_staleness,
            "too_old": too_old,
            "steps": steps,
        }
        self.flow = GroupFlow(**self.options)
        self.prompts, self.bound, self.too_old, self.total = prompts, max_staleness, too_old, steps
        self.version, self.done, self.refills = 0, 0, 2
        self.under_way: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.left: Counter[int] = Counter()
        self.wanted = 0
        self.dropped_before = 0

    def is_open(self) -> bool:
        return self.done < self.total

    @precondition(lambda self: self.is_open() and not self.wanted)
    @rule()
    def step_opens(self) -> None:
        self.wanted = self.prompts
        self.flow.want(self.wanted)

    @rule()
    def begins(self) -> None:
        for number in self.flow.to_begin():
            assert number not in self.under_way and number not in self.ready and not self.left[number]
            self.under_way[number] = self.version
        # Groups for the steps to come, the open one not among them: there are no more than are left.
        ahead = min(self.bound, self.total - self.done - (self.wanted > 0))
        assert len(self.under_way) + len(self.ready) <= ahead * self.prompts + self.wanted

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        begun = self.under_way.pop(number)
        oldest = data.draw(st.integers(begun, self.version))  # it may have waited for a lease
        self.ready[number] = oldest
        self.flow.finished(number, oldest)

    @precondition(lambda self: self.wanted)
    @rule(refills=st.booleans(), learns=st.booleans())
    def takes(self, refills: bool, learns: bool) -> None:
        known = len(self.flow.dropped)
        taken = self.flow.take()
        for number in self.flow.dropped[known:]:
            assert self.version - self.ready.pop(number) > self.bound
            self.left[number] += 1
            assert self.too_old == "drop", "who waits drops nothing"
        if taken is None:
            return
        assert len(taken) == self.wanted and taken == sorted(taken)
        for number in taken:
            assert self.version - self.ready.pop(number) <= self.bound
            self.left[number] += 1
        self.wanted = 0
        if refills and self.refills:
            self.refills -= 1
            self.wanted = 1
            self.flow.want(1)
            return
        self.done += 1
        self.refills = 2
        self.version += learns
        self.flow.stepped(self.version)

    @precondition(lambda self: not self.wanted)
    @rule()
    def dies_and_is_resumed(self) -> None:
        """At the end of a step, as checkpoints are written there."""
        again, cursor = self.flow.held, self.flow.cursor
        assert {*self.under_way, *self.ready} <= {*again}
        self.flow = GroupFlow(**self.options, done=self.done, cursor=cursor, again=again, version=self.version)
        assert self.flow.held == again
        self.under_way, self.ready = {}, {}

    @invariant()
    def nothing_leaves_twice_and_nothing_is_skipped(self) -> None:
        if not hasattr(self, "flow"):
            return
        assert all(count == 1 for count in self.left.values())
        assert {*self.flow.held, *self.left} == set(range(self.flow.cursor))


Stage.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestStage = Stage.TestCase


def played(flow: GroupFlow, prompts: int, steps: int, seed: int) -> tuple[list[int], list[int]]:
    """A stage in which groups finish in a random order, each as soon as nothing else can happen: taken, dropped."""
    luck, under_way, taken, dropped, version = random.Random(seed), dict[int, int](), [], [], 0
    for _ in range(steps):
        flow.want(prompts)
        while (numbers := flow.take()) is None:
            under_way |= dict.fromkeys(flow.to_begin(), version)
            number = luck.choice(sorted(under_way))
            flow.finished(number, under_way.pop(number))
        taken += numbers
        dropped += flow.dropped
        version += 1
        flow.stepped(version)
    return taken, dropped


@given(st.integers(1, 4), st.integers(0, 3), st.sampled_from(["drop", "wait"]), st.integers(0, 10**6))
def test_a_stage_comes_to_its_end_and_begins_no_more_than_it_needs(
    prompts: int, max_staleness: int, too_old: TooOld, seed: int
) -> None:
    flow = GroupFlow(prompts=prompts, max_staleness=max_staleness, too_old=too_old, steps=6)
    taken, dropped = played(flow, prompts, 6, seed)
    assert len(taken) == len(set(taken)) == 6 * prompts
    event(f"dropped some: {bool(dropped)}")
    assert flow.cursor == 6 * prompts + len(dropped) + len(flow.held)
    if too_old == "wait" or not max_staleness:
        assert dropped == [] and flow.held == () and sorted(taken) == list(range(6 * prompts))


def test_synchronous_steps_take_the_problems_in_their_order() -> None:
    flow = GroupFlow(prompts=3, max_staleness=0, too_old="drop", steps=5)
    taken, _ = played(flow, 3, 5, seed=1)
    assert taken == list(range(15))


def test_a_straggler_is_dropped_or_waited_for() -> None:
    rules: dict[TooOld, list[int] | None] = {"drop": [3, 4], "wait": None}
    for too_old, expected in rules.items():
        flow = GroupFlow(prompts=2, max_staleness=1, too_old=too_old, steps=9)
        flow.want(2)
        assert flow.to_begin() == [0, 1, 2, 3]
        for number in (1, 2, 3):
            flow.finished(number, 0)
        assert flow.take() == [1, 2]
        flow.stepped(1)
        flow.want(2)
        assert flow.to_begin() == [4, 5]
        for number in (4, 5):
            flow.finished(number, 1)
        # 0 is still under way, and of version 0: after this step it would be too old.
        assert flow.take() == expected
        flow.finished(0, 0)
        if expected is None:
            assert flow.take() == [0, 3]
            continue
        flow.stepped(2)
        flow.want(2)
        flow.to_begin()
        assert flow.take() is None and flow.dropped == [0]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_at_most_so_many_steps_are_ahead(max_staleness: int) -> None:
    flow = GroupFlow(prompts=4, max_staleness=max_staleness, too_old="drop", steps=3)
    flow.want(4)
    assert len(flow.to_begin()) == 4 * (1 + min(max_staleness, 2)), "the stage has three steps"
    assert flow.to_begin() == []
