"""The event-driven scheduler does what a token-by-token one does, whatever comes between its steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.batching_records import BatchingCounts, BatchingLimits, Turn
from policies.continuous_batching import ContinuousBatching
from policies.step_cost import StepCost, StepWork
from tests.policies.token_by_token import TokenByToken
from tests.support.batching_traces import StepRecord, play, random_trace


class EventDriven:
    """`ContinuousBatching` as `play` drives it, stretch by stretch; some stretches are broken off."""

    def __init__(self, limits: BatchingLimits, seed: int = 0) -> None:
        self.core, self._rng = ContinuousBatching(limits), random.Random(seed)

    def add(self, turn: Turn) -> None:
        self.core.add(turn)

    def abort(self, request_id: str) -> None:
        self.core.abort(request_id)

    def step(self, most: int) -> tuple[int, StepRecord]:
        work = self.core.begin()
        assert work is not None
        steps = min(work.steps, most)
        if self._rng.random() < 0.3:
            steps = self._rng.randint(1, steps)
        finished = self.core.end(steps)
        return steps, StepRecord(
            running=self.core.running,
            waiting=self.core.waiting,
            admissions=self.core.counts.admissions,
            preemptions=self.core.counts.preemptions,
            used_blocks=self.core.used_blocks,
            finished=tuple(done.id for done in finished),
        )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_agrees_with_a_token_by_token_scheduler(seed: int) -> None:
    trace = random_trace(seed)
    slow = play(trace, TokenByToken(trace.limits))
    fast = play(trace, EventDriven(trace.limits, seed))
    assert fast == {step: slow[step] for step in fast}
    assert [step for step, record in slow.items() if record.finished] == [s for s, r in fast.items() if r.finished]


def test_the_traces_are_hard_enough_to_tell_schedulers_apart() -> None:
    counts = BatchingCounts()
    for seed in range(60):
        trace = random_trace(seed)
        driven = EventDriven(trace.limits, seed)
        play(trace, driven)
        for name in BatchingCounts.__slots__:
            setattr(counts, name, getattr(counts, name) + getattr(driven.core.counts, name))
    assert counts.preemptions > 150 and counts.recomputed_tokens > 0
    assert 0.2 < counts.hit_tokens / counts.lookup_tokens < 0.8


def turn(name: str, length: int = 100, new: int = 50, prompt: str = "p") -> Turn:
    return Turn(id=name, prompt=prompt, prompt_tokens=100, sequence=name, length=length, new_tokens=new)


def test_a_thousand_tokens_are_one_piece_of_work() -> None:
    driven = EventDriven(BatchingLimits(kv_blocks=1000))
    core = driven.core
    for name in ("a", "b", "c"):
        core.add(turn(name, new=1001))
    first, second = core.begin(), None
    core.end(1)
    second = core.begin()
    assert first is not None and first.prefill_tokens == 100 + 2 * (100 - 96), "full blocks of a prompt are shared"
    assert second == StepWork(steps=1000, decoding=3, context_tokens=300)
    assert {done.id for done in core.end(1000)} == {"a", "b", "c"}
    assert core.begin() is None and core.used_blocks == 0


def test_a_request_over_capacity_is_refused_with_the_numbers() -> None:
    core = ContinuousBatching(BatchingLimits(kv_blocks=10, block_tokens=16))
    with pytest.raises(ValueError, match=r"100 \+ 61 tokens exceed the engine's 160"):
        core.add(turn("a", new=61))


def test_limits_that_starve_the_running_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_step_tokens=8 is less than max_running=16"):
        BatchingLimits(kv_blocks=10, max_running=16, max_step_tokens=8)


@given(st.integers(1, 300), st.integers(0, 50), st.integers(0, 100_000), st.integers(0, 5000), st.floats(0, 10))
def test_a_stretch_costs_what_its_steps_cost_one_by_one(
    steps: int, decoding: int, context: int, prefill: int, passed: float
) -> None:
    cost = StepCost(base=0.01, sequence=1e-4, context_token=1e-6, prefill_token=1e-5, prefill_pair=1e-9)
    work = StepWork(steps, decoding, context, prefill, prefill * 7)
    singly = [
        cost.seconds(StepWork(1, decoding, context + index * decoding, prefill, prefill * 7)) for index in range(steps)
    ]
    assert cost.seconds(work) == pytest.approx(sum(singly))
    begun = cost.steps_begun_by(work, passed)
    ends = [cost.seconds(work, index) for index in range(1, steps + 1)]
    assert begun == min(steps, 1 + sum(end <= passed for end in ends))
