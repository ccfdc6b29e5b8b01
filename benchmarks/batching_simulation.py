"""One step of rollouts on simulated engines, without actors: pure schedulers on a pure event loop.

Each engine is a `ContinuousBatching` with a `StepCost`, so this shows what strategies do to engines, and nothing else:
messages, environments that are short of workers, and faults are `greenroom simulate`'s business.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from policies.balancing import Capacity, Strategy, Wish
from policies.batching_records import BatchingLimits, Turn
from policies.continuous_batching import ContinuousBatching
from policies.makespan_bound import Path, bound_of_paths, path_of
from policies.scripted import Rollout, ScriptedTurn
from policies.step_cost import StepCost, StepWork

CALL_OVERHEAD_S, CALL_LIMIT_S = 0.2, 4.0


@dataclass(slots=True)
class Figures:
    """What came of one step's rollouts."""

    makespan_s: float
    preemptions: int
    evenness: float
    """Mean of the times at which engines ended their last work, over the last of these: moving rollouts between engines
    could save at most the rest."""


@dataclass(slots=True)
class _Engine:
    core: ContinuousBatching
    began: float = 0.0
    work: StepWork | None = None
    steps: int = 0
    alarm: int = 0
    """Number of the event that ends the work; earlier ones are void."""
    arriving: list[Turn] = field(default_factory=list)
    end: float = 0.0


class Simulation:
    """One step of a workload on `engines` equal engines."""

    def __init__(
        self,
        strategy: Strategy,
        rollouts: dict[str, Rollout],
        longest: int,
        engines: int,
        limits: BatchingLimits,
        cost: StepCost,
        before: float = 0.0,
    ) -> None:
        self._strategy, self._rollouts, self._longest, self._cost = strategy, rollouts, longest, cost
        self._engines = {f"g{index:03}": _Engine(ContinuousBatching(limits)) for index in range(engines)}
        self._limits = limits
        self._events: list[tuple[float, int, str, str]] = []
        self._numbers = 0
        self._barrier = False
        self._before, self._now = before, 0.0
        self._placed: dict[str, str] = {}
        self._turn: dict[str, int] = {}
        self._length: dict[str, int] = {}

    def run(self) -> Figures:
        known = {load.capacity.generator for load in self._strategy.loads()}
        for name in sorted(self._engines.keys() - known):
            self._strategy.generator_joined(
                Capacity(
                    generator=name,
                    incarnation=0,
                    kv_tokens=self._limits.kv_blocks * self._limits.block_tokens,
                    block_tokens=self._limits.block_tokens,
                    max_sequence_tokens=self._longest,
                )
            )
        for name, rollout in self._rollouts.items():
            group = name.rpartition("/")[0]
            self._strategy.wish(
                Wish(rollout=name, prompt_tokens=rollout.prompt_tokens, max_tokens=self._longest, group=group)
            )
        self._go_on()
        while self._events:
            self._now, number, kind, name = heapq.heappop(self._events)
            self._strategy.time_is(self._before + self._now)
            if kind == "engine":
                self._engine_rings(self._engines[name], number, name)
            else:
                self._tool_returns(name)
        assert not self._placed, "rollouts were left behind"
        return self._figures()

    def _at(self, when: float, kind: str, name: str) -> int:
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, kind, name))
        return self._numbers

    def _go_on(self) -> None:
        for lease in self._strategy.grants():
            self._placed[lease.rollout] = lease.generator
            self._turn[lease.rollout] = 0
            self._length[lease.rollout] = self._rollouts[lease.rollout].prompt_tokens
            self._barrier = lease.turn_barrier
            self._send(lease.rollout)
        for rollout in self._strategy.turns():
            self._send(rollout)

    def _send(self, rollout: str) -> None:
        name = self._placed[rollout]
        engine, script, length = self._engines[name], self._rollouts[rollout], self._length[rollout]
        engine.arriving.append(
            Turn(
                id=rollout,
                prompt=rollout.rpartition("/")[0],
                prompt_tokens=script.prompt_tokens,
                sequence=rollout,
                length=length,
                new_tokens=min(script.turns[self._turn[rollout]].n_tokens, self._longest - length),
            )
        )
        if engine.work is None:
            self._begin(engine, name)
        elif not engine.core.waiting:
            steps = self._cost.steps_begun_by(engine.work, self._now - engine.began)
            if steps < engine.steps:
                self._set_alarm(engine, name, steps)

    def _begin(self, engine: _Engine, name: str) -> None:
        for turn in engine.arriving:
            engine.core.add(turn)
        engine.arriving.clear()
        engine.work = engine.core.begin()
        if engine.work is not None:
            engine.began = self._now
            self._set_alarm(engine, name, engine.work.steps)

    def _set_alarm(self, engine: _Engine, name: str, steps: int) -> None:
        assert engine.work is not None
        engine.steps = steps
        engine.alarm = self._at(engine.began + self._cost.seconds(engine.work, steps), "engine", name)

    def _engine_rings(self, engine: _Engine, number: int, name: str) -> None:
        if number != engine.alarm:
            return
        sampled = engine.core.end(engine.steps)
        engine.end = self._now
        engine.work = None
        for done in sampled:
            self._turn_ends(done.id, done.tokens)
        self._go_on()
        if engine.work is None:
            self._begin(engine, name)

    def _turn_ends(self, rollout: str, tokens: int) -> None:
        script = self._rollouts[rollout].turns[self._turn[rollout]]
        self._length[rollout] += tokens
        length = self._length[rollout]
        self._strategy.progressed(rollout, length)
        response = sum(call.response_tokens for call in script.calls)
        if not script.calls or tokens < script.n_tokens or length + response >= self._longest:
            del self._placed[rollout]
            self._strategy.release(rollout, length)
            return
        self._at(self._now + call_seconds(script), "tool", rollout)

    def _tool_returns(self, rollout: str) -> None:
        script = self._rollouts[rollout].turns[self._turn[rollout]]
        self._length[rollout] += sum(call.response_tokens for call in script.calls)
        self._turn[rollout] += 1
        if self._barrier:
            self._strategy.turn_wish(rollout)
        else:
            self._send(rollout)
        self._go_on()

    def _figures(self) -> Figures:
        engines = self._engines.values()
        return Figures(
            makespan_s=self._now,
            preemptions=sum(engine.core.counts.preemptions for engine in engines),
            evenness=sum(engine.end for engine in engines) / (self._now * len(engines)),
        )


def lower_bound(
    rollouts: dict[str, Rollout], longest: int, engines: int, limits: BatchingLimits, cost: StepCost
) -> float:
    """Seconds that no schedule can beat (`policies.makespan_bound`)."""
    return bound_of_paths(
        [_path(name, rollout, longest) for name, rollout in rollouts.items()],
        cost=cost,
        engines=engines,
        kv_tokens=limits.kv_blocks * limits.block_tokens,
        max_running=limits.max_running,
    )


def _path(name: str, rollout: Rollout, longest: int) -> Path:
    """A rollout as `Simulation` plays it, cut off at `longest` tokens."""
    sizes: list[tuple[bool, int]] = []
    length, tool_seconds = rollout.prompt_tokens, 0.0
    for turn in rollout.turns:
        said = min(turn.n_tokens, longest - length)
        sizes.append((True, said))
        length += said
        response = sum(call.response_tokens for call in turn.calls)
        if not turn.calls or said < turn.n_tokens or length + response >= longest:
            break
        sizes.append((False, response))
        length += response
        tool_seconds += call_seconds(turn)
    return path_of(name.rpartition("/")[0], rollout.prompt_tokens, sizes, tool_seconds)


def call_seconds(turn: ScriptedTurn) -> float:
    """What the calls of a turn take; they run side by side."""
    return CALL_OVERHEAD_S + max(min(call.run_seconds, CALL_LIMIT_S) for call in turn.calls)
