"""An engine that spends modelled time instead of computing: the understudy of `VllmEngine`.

Invariants:
- what runs, waits, is preempted and is found in the prefix cache is decided by `policies.continuous_batching`, which
  agrees with vLLM's own scheduler; how long a step takes by `policies.step_cost`;
- a request, an abort, a pause or new weights take effect at the end of the step that is under way, never within it;
- tokens are counted, not made: a request needs `counted`, and its result holds the scripted turn, cut where the
  request's `max_tokens` cuts it.

Event-driven: a stretch of equal steps is one sleep on the actor's clock, broken off when something comes between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from actors.engines.engine import EngineCapacity, EngineUsage, SampleRequest, SampleResult
from actors.system.clock import Clock, Timer, seconds_since
from policies.batching_records import BatchingCounts, BatchingLimits, Turn
from policies.continuous_batching import ContinuousBatching
from policies.options import Options
from policies.scripted import CountedTokens, Script, ScriptedTurn
from policies.step_cost import Seconds, StepCost, StepWork
from policies.trajectory import VersionRun, WeightsVersion


class SimulatedOptions(Options):
    """How the simulated engine is set up."""

    limits: BatchingLimits
    max_sequence_tokens: int = Field(ge=2)
    cost: StepCost = StepCost()
    update_seconds: Seconds = 0.0
    """Time in which the engine takes new weights, and steps not."""


class _Asked:
    """A request in the engine, or about to enter it."""

    __slots__ = ("earlier", "future", "max_tokens", "turn")

    def __init__(self, max_tokens: int, turn: ScriptedTurn) -> None:
        self.max_tokens, self.turn = max_tokens, turn
        self.earlier: tuple[VersionRun, ...] = ()
        self.future: asyncio.Future[SampleResult] = asyncio.get_running_loop().create_future()


class SimulatedEngine:
    """See the module's docstring.

    Args:
        script: what the model says.
    """

    kind = "simulated"

    def __init__(self, *, options: SimulatedOptions, script: Script, clock: Clock) -> None:
        self._options, self._script, self._clock = options, script, clock
        self._core = ContinuousBatching(options.limits)
        self._cost = options.cost
        self._block_tokens = options.limits.block_tokens
        self._longest = min(options.max_sequence_tokens, options.limits.kv_blocks * options.limits.block_tokens)
        self._asked: dict[str, _Asked] = {}
        self._arriving: list[tuple[str, CountedTokens, int]] = []
        """Requests for the next step: id, history, tokens to come."""
        self._leaving: list[str] = []
        self._version = WeightsVersion(0, 0)
        self._paused = False
        self._updates: list[asyncio.Future[None]] = []
        self._work: StepWork | None = None
        self._steps = 0
        """Steps of `_work` after which the alarm rings."""
        self._steps_done = 0
        """In all, those of `_work` not among them."""
        self._began_ns = self._changed_ns = clock.now_ns()
        self._alarm: Timer | None = None
        self._busy_seconds = self._kv_token_seconds = 0.0
        self._used_tokens = 0

    async def start(self) -> EngineCapacity:
        limits = self._options.limits
        return EngineCapacity(
            kv_blocks=limits.kv_blocks,
            block_tokens=limits.block_tokens,
            max_sequence_tokens=self._options.max_sequence_tokens,
            max_step_tokens=limits.max_step_tokens,
        )

    async def sample(self, request: SampleRequest) -> SampleResult:
        ids = request.counted
        if ids is None:
            raise ValueError(
                f"request {request.id}: a simulated engine has no model to continue its {len(request.ids)} token ids "
                "with; give `counted`, as simulated dialogues do"
            )
        request_id, max_tokens = request.id, request.max_tokens
        if ids.length + max_tokens > self._longest:
            raise ValueError(
                f"request {request_id}: {ids.length} + {max_tokens} tokens exceed the engine's {self._longest}; "
                "lower max_tokens or give the engine more KV cache (a request over capacity would wait for ever)"
            )
        assert request_id not in self._asked, f"request {request_id} is already in the engine"
        turn = self._script.turn(ids.sequence, ids.turns)
        asked = self._asked[request_id] = _Asked(max_tokens, turn)
        self._arriving.append((request_id, ids, min(turn.n_tokens, max_tokens)))
        if not self._core.waiting:  # else it could not run before the stretch ends: others are waiting in front of it
            self._interrupt()
        try:
            return await asked.future
        except asyncio.CancelledError:
            await self.abort(request_id)
            raise

    async def abort(self, request_id: str) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        arriving = len(self._arriving)
        self._arriving = [request for request in self._arriving if request[0] != request_id]
        if len(self._arriving) == arriving:
            self._leaving.append(request_id)
            self._interrupt()
        if not asked.future.done():
            asked.future.set_result(self._result(asked, None))

    async def pause(self) -> None:
        self._paused = True
        self._interrupt()

    async def resume(self) -> None:
        self._paused = False
        self._interrupt()

    async def update_weights(self, version: WeightsVersion, weights: Iterable[tuple[str, Any]]) -> None:
        """Note the version; `weights` are not looked at."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._updates.append(done)
        self._interrupt()
        try:
            await done
            await self._clock.sleep(self._options.update_seconds)
            self._note_versions()
            self._version = version
        finally:
            self._updates.remove(done)
            self._interrupt()

    def _note_versions(self) -> None:
        """Before new weights take over: what these have sampled of the turns under way."""
        for request_id, asked in self._asked.items():
            known = sum(run.tokens for run in asked.earlier)
            sampled = self._core.generated(request_id) - known if request_id in self._core else 0
            if sampled:
                asked.earlier += (VersionRun(self._version, sampled),)

    def usage(self) -> EngineUsage:
        self._count_kv(self._used_tokens)
        core = self._core
        return EngineUsage(
            running=len(core) + len(self._arriving),
            kv_used_tokens=self._used_tokens,
            generated_tokens=core.counts.generated_tokens,
            busy_seconds=self._busy_seconds,
            kv_token_seconds=self._kv_token_seconds,
        )

    def work_done(self) -> int:
        """Steps."""
        if self._work is None:
            return self._steps_done
        begun = self._cost.steps_begun_by(self._work, seconds_since(self._clock, self._began_ns))
        return self._steps_done + min(begun, self._steps)

    def counts(self) -> BatchingCounts:
        """What the scheduler has done so far (the live object)."""
        return self._core.counts

    async def close(self) -> None:
        for request_id in list(self._asked):
            await self.abort(request_id)
        if self._alarm is not None:
            self._alarm.cancel()

    # --- time ------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Something changed: let the step under way be the last of its stretch; begin one if none is."""
        if self._work is None:
            self._begin()
            return
        steps = self._cost.steps_begun_by(self._work, seconds_since(self._clock, self._began_ns))
        if steps < self._steps:
            assert self._alarm is not None
            self._alarm.cancel()
            self._set_alarm(steps)

    def _begin(self) -> None:
        """Between steps: apply what has been asked for, and start the next stretch."""
        if self._leaving:
            for request_id in self._leaving:
                self._core.abort(request_id)
            self._leaving = []
        if self._arriving and not self._updates:
            # KV of other weights must not be found: each version has its own prefix cache.
            for request_id, ids, new_tokens in self._arriving:
                prompt = self._version, ids.prompt
                sequence = prompt, ids.sequence
                self._core.add(Turn(request_id, prompt, ids.prompt_tokens, sequence, ids.length, new_tokens))
            self._arriving = []
        for update in self._updates:
            if not update.done():
                update.set_result(None)
        core = self._core
        if not self._paused and not self._updates:
            self._work = core.begin()
        self._count_kv(self._used_tokens)
        self._used_tokens = core.used_blocks * self._block_tokens
        if self._work is not None:
            self._began_ns = self._changed_ns
            self._set_alarm(self._work.steps)

    def _set_alarm(self, steps: int) -> None:
        assert self._work is not None
        self._steps = steps
        end_ns = self._began_ns + round(self._cost.seconds(self._work, steps) * 1e9)
        self._alarm = self._clock.call_later(max(0.0, (end_ns - self._clock.now_ns()) / 1e9), self._ring)

    def _ring(self) -> None:
        """The stretch is over."""
        self._work = None
        self._alarm = None
        self._steps_done += self._steps
        sampled = self._core.end(self._steps)
        self._count_kv(self._core.peak_blocks * self._block_tokens)
        self._busy_seconds += (self._changed_ns - self._began_ns) / 1e9
        for request_id, _ in sampled:
            if request_id in self._leaving:  # it was answered then, and the id may have been asked for again
                self._leaving.remove(request_id)
                continue
            asked = self._asked.pop(request_id)
            if not asked.future.done():
                asked.future.set_result(self._result(asked, asked.turn))
        self._begin()

    def _count_kv(self, used_now: int) -> None:
        """Book the KV held since it was last booked, until now: `used_now` at the end, after even growth."""
        now = self._clock.now_ns()
        if now != self._changed_ns:
            self._kv_token_seconds += (self._used_tokens + used_now) / 2 * (now - self._changed_ns) / 1e9
            self._changed_ns = now
        self._used_tokens = used_now

    def _result(self, asked: _Asked, turn: ScriptedTurn | None) -> SampleResult:
        """The end of a request; `turn` is None for one that was aborted."""
        finish = "stop"
        if turn is None:
            finish = "aborted"
        elif turn.n_tokens > asked.max_tokens:
            turn, finish = ScriptedTurn(asked.max_tokens), "length"  # cut before its calls or its answer were said
        return SampleResult(ids=[], logprobs=[], finish=finish, version=self._version, earlier=asked.earlier, turn=turn)
