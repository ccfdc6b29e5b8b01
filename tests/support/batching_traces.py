"""Random work for a scheduler, and its record of what it did with it.

Groups of rollouts share prompts. A rollout's next turn comes some steps after the last one ended;
some turns are aborted.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from policies.batching_records import BatchingLimits, Turn


class ScriptedRollout(NamedTuple):
    start: int
    """Step before which the first turn comes."""
    prompt: str
    prompt_tokens: int
    turns: tuple[tuple[int, int, int], ...]
    """Per turn: tokens generated, tokens of the response to it, steps until the next turn comes."""
    abort_after: int | None
    """Steps from the last turn's arrival to its abort."""


@dataclass(frozen=True)
class Trace:
    limits: BatchingLimits
    rollouts: tuple[ScriptedRollout, ...]


def random_trace(seed: int) -> Trace:
    """A trace that a handful of KV blocks makes hard; every third has room to spare."""
    rng = random.Random(seed)
    block = rng.choice((4, 8, 16))
    prompts = [rng.choice((rng.randint(1, 6 * block), rng.randint(1, 6) * block)) for _ in range(rng.randint(1, 4))]
    limits = BatchingLimits(
        kv_blocks=rng.randint(16, 40) if seed % 3 else 400,
        block_tokens=block,
        max_running=rng.choice((2, 5, 16)),
        max_step_tokens=rng.choice((16, 48, 512)),
        prefix_caching=rng.random() < 0.85,
    )
    rollouts = []
    for _ in range(rng.randint(4, 24)):
        prompt = rng.randrange(len(prompts))
        length, turns = prompts[prompt], []
        for _ in range(rng.randint(1, 5)):
            new, response = rng.randint(1, 5 * block), rng.randint(1, 2 * block)
            if length + new > 15 * block:
                break
            turns.append((new, response, rng.randint(1, 80)))
            length += new + response
        if turns:
            abort_after = rng.randint(1, 30) if rng.random() < 0.15 else None
            rollouts.append(
                ScriptedRollout(rng.randint(0, 40), f"p{prompt}", prompts[prompt], tuple(turns), abort_after)
            )
    return Trace(limits, tuple(rollouts))


class StepRecord(NamedTuple):
    """The state of a scheduler after a step, and how often it had admitted and preempted until then."""

    running: tuple[str, ...]
    waiting: int
    admissions: int
    preemptions: int
    used_blocks: int
    finished: tuple[str, ...]


class SteppedScheduler(Protocol):
    """What is compared."""

    def add(self, turn: Turn, /) -> None: ...

    def abort(self, request_id: str, /) -> object: ...

    def step(self, most: int, /) -> tuple[int, StepRecord]:
        """Do at least 1 and at most `most` steps; returns how many were done, and the state after them."""
        ...


class _Rollouts:
    """Decides what comes before which step."""

    def __init__(self, trace: Trace) -> None:
        self._rollouts = trace.rollouts
        self._due: defaultdict[int, list[tuple[str, Turn]]] = defaultdict(list)
        self._lengths = [rollout.prompt_tokens for rollout in trace.rollouts]
        for index, rollout in enumerate(trace.rollouts):
            self._come(index, 0, rollout.start)

    def _come(self, index: int, number: int, step: int) -> None:
        rollout, name = self._rollouts[index], f"r{index}"
        turn = Turn(
            id=f"{name}#{number}",
            prompt=rollout.prompt,
            prompt_tokens=rollout.prompt_tokens,
            sequence=name,
            length=self._lengths[index],
            new_tokens=rollout.turns[number][0],
        )
        self._due[step].append(("add", turn))
        if rollout.abort_after is not None and number == len(rollout.turns) - 1:
            self._due[step + rollout.abort_after].append(("abort", turn))

    def finished(self, request_id: str, step: int) -> None:
        name, number = request_id.split("#")
        index, after = int(name[1:]), int(number) + 1
        rollout = self._rollouts[index]
        if after < len(rollout.turns):
            new, response, gap = rollout.turns[after - 1]
            self._lengths[index] += new + response
            self._come(index, after, step + gap)

    def take(self, step: int) -> list[tuple[str, Turn]]:
        return self._due.pop(step, [])

    def next_step(self, after: int) -> int | None:
        return min((step for step in self._due if step > after), default=None)


def play(trace: Trace, scheduler: SteppedScheduler) -> dict[int, StepRecord]:
    """Run a trace to its end; the state after each step (of a stretch of steps: after its last)."""
    rollouts, records, step, unfinished = _Rollouts(trace), {}, 0, 0
    ids: set[str] = set()
    while True:
        for kind, turn in rollouts.take(step):
            if kind == "add":
                scheduler.add(turn)
                ids.add(turn.id)
            else:
                scheduler.abort(turn.id)
                ids.discard(turn.id)
        coming = rollouts.next_step(step)
        if not ids:
            if coming is None:
                return records
            step = coming
            continue
        steps, record = scheduler.step(10_000 if coming is None else coming - step)
        step += steps
        records[step] = record
        for request_id in record.finished:
            ids.discard(request_id)
            rollouts.finished(request_id, step)
        unfinished += 1
        assert unfinished < 100_000, "the scheduler makes no progress"
