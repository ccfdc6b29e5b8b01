"""However many rollouts have come and gone, the books hold what is open, and little more."""

from __future__ import annotations

import pickle
import random
from typing import get_args

import pytest

from policies.admission_queue import AdmissionQueue
from policies.balancing import BalancerOptions, Capacity, Strategy, StrategyName, Wish
from policies.balancing_strategies import make_strategy
from policies.dispatch import LeastOutstanding
from policies.group_flow import GroupFlow


class Load:
    """Groups of eight that come, wait, run and end, some of them lost, until all are through."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.draw = strategy, random.Random(0)
        self.groups, self.now, self.incarnation = 0, 0.0, 0
        self.running: list[str] = []
        for name in ("g0", "g1"):
            self.join(name)

    def join(self, name: str) -> None:
        self.incarnation += 1
        ended = self.strategy.generator_left(name)
        self.running = [rollout for rollout in self.running if rollout not in ended]
        self.strategy.generator_joined(Capacity(
            generator=name, incarnation=self.incarnation, kv_tokens=2048, block_tokens=16, max_sequence_tokens=512,
        ))  # fmt: skip

    def settle(self) -> None:
        self.running += [lease.rollout for lease in self.strategy.grants()]
        self.strategy.turns()

    def step(self) -> None:
        """Forty groups."""
        for _ in range(40):
            self.groups += 1
            for sample in range(8):
                name, group = f"{self.groups:08}/{sample}", f"{self.groups:08}"
                self.strategy.wish(Wish(rollout=name, prompt_tokens=16, max_tokens=512, group=group))
            self.settle()
        self.strategy.withdraw(f"{self.groups:08}/7")
        while self.running:
            self.now += 1.0
            self.strategy.time_is(self.now)
            rollout = self.running.pop(self.draw.randrange(len(self.running)))
            self.strategy.progressed(rollout, self.draw.randrange(16, 400))
            self.strategy.release(rollout, self.draw.choice([None, self.draw.randrange(16, 512)]))
            if self.draw.random() < 0.005:
                self.join(self.draw.choice(["g0", "g1"]))
            self.settle()


@pytest.mark.parametrize("name", get_args(StrategyName))
def test_a_strategy_holds_no_more_after_many_steps_than_after_some(name: StrategyName) -> None:
    load = Load(make_strategy(BalancerOptions(strategy=name, batch=16)))
    sizes = []
    for _ in range(24):
        load.step()
        sizes.append(len(pickle.dumps(load.strategy)))
    # Some bytes: counts that have grown, and generators that have just come back. A group that is kept takes more, and
    # 480 of them come in these steps.
    assert max(sizes[12:]) <= max(sizes[4:12]) + 480, sizes


def test_groups_that_are_over_are_forgotten_as_soon_after_many_ends_as_after_few() -> None:
    strategy, sizes = make_strategy(BalancerOptions(strategy="predictive")), []
    strategy.generator_joined(
        Capacity(generator="g0", incarnation=0, kv_tokens=4096, block_tokens=16, max_sequence_tokens=512)
    )
    for number in range(12_000):
        name = f"{number:08}"
        strategy.wish(Wish(rollout=name, prompt_tokens=16, max_tokens=512, group=name))
        strategy.grants()
        strategy.release(name, 100 + number % 300)
        if number % 97 == 0:
            sizes.append(len(pickle.dumps(strategy)))
    assert max(sizes[20:]) <= max(sizes[:20]) + 480, sizes


def test_a_queue_in_which_short_groups_are_always_overtaken_is_cleared_out() -> None:
    """Their entries sink in the heap: nobody comes upon them while longer ones wait."""
    queue, alive = AdmissionQueue(), Wish(rollout="long/0", prompt_tokens=1, max_tokens=2, group="long")
    queue.add(alive)
    queue.remove(alive)
    queue.started(alive)
    for number in range(3000):
        short = [
            Wish(rollout=f"{number}/{sample}", prompt_tokens=1, max_tokens=2, group=str(number)) for sample in range(3)
        ]
        for wish in short:
            queue.add(wish)
        for index, wish in enumerate(short):
            queue.remove(wish)
            queue.started(wish)
            queue.ended(str(number), 10 + index)
        if queue.known_groups > 64:
            queue.forget_finished_groups({"long"})
        queue.ended("long", 100_000 + number)
    assert len(pickle.dumps(queue)) < 10_000


def test_the_flow_of_groups_and_the_books_of_calls_do_not_grow() -> None:
    flow = GroupFlow(prompts=4, max_staleness=2, too_old="drop", steps=10**6)
    dispatch, sizes = LeastOutstanding(["environment-0", "environment-1"]), list[int]()
    for step in range(600):
        flow.want(4)
        while flow.take() is None:
            for number in flow.to_begin():
                flow.finished(number, max(0, step - number % 4))  # some come too late
        flow.stepped(step + 1)
        for _ in range(5):
            dispatch.finished(dispatch.choose(frozenset()))
        sizes.append(len(pickle.dumps((flow, dispatch))))
    assert max(sizes[300:]) <= max(sizes[100:300]) + 32, sizes
