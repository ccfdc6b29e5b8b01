"""The generator: an engine behind messages, with the token histories of the rollouts that hold leases on it.

Invariants:
- a history here equals the rollout's own up to `known` tokens, or the answer is `history_missing`;
- a lease of another incarnation is answered `history_missing`: what it held is gone;
- a rollout that is forgotten holds nothing here: its request is aborted, its history dropped, and a request of it that
  was overtaken on its way begins nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from actors.engines.engine import Engine, EngineCapacity, EngineFailed, SampleRequest
from actors.engines.simulated_engine import SimulatedEngine, SimulatedOptions
from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_options import VllmOptions
from actors.messages import (
    DescribeGenerator,
    ForgetOwner,
    ForgetRollout,
    GeneratorStatus,
    JoinGenerator,
    LeaveWave,
    PublishWeights,
    SampleTurn,
    TurnSampled,
    UpdateWeights,
)
from actors.supervision import Watched, owner_of, patiently
from actors.system.actor import ActorRef, BlobRef, CannotGoOn, handles
from actors.system.message import Done
from actors.wave_gate import WaveGate
from policies import tokens
from policies.balancing import Capacity
from policies.scripted import Script
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""For small requests to other actors."""
WEIGHTS_DEADLINE_S = 3600.0
"""For the learner's weights, from one that does nothing: it may be in the middle of a step."""
SOON_S = 120.0
"""How long the start waits for them: stages give up an actor whose start takes ten minutes."""

FORGOTTEN = 1024
"""How many rollouts are known to be forgotten, the last ones: what forgets them travels in a lane of its own, and may
overtake their last request."""


class GeneratorActor(Watched):
    """Samples model turns.

    Args:
        model: folder of the model in Hugging Face format; a simulated engine has none.
        options: how the engine is set up; they also say which engine it is.
        balancer: where the generator's capacity is announced.
        learner: whose weights a generator takes that was restarted in the middle of a run.
        script: what the model of a simulated engine says.
    """

    def __init__(
        self,
        *,
        model: str,
        options: VllmOptions | SimulatedOptions,
        balancer: ActorRef,
        learner: ActorRef | None = None,
        script: Script | None = None,
    ) -> None:
        self._model, self._options, self._balancer, self._script = model, options, balancer, script
        self._learner = learner
        self._histories: dict[str, list[int]] = {}
        self._turns: dict[str, dict[int, asyncio.Future[TurnSampled]]] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._turns_served = 0
        self._waves = WaveGate()
        self._version = WeightsVersion(0, 0)
        self._newest = self._version
        """That the director has brought, or is bringing."""

    async def start(self) -> None:
        self._engine: Engine = self._make_engine()
        try:
            self._capacity = await self._engine.start()
        except EngineFailed as failure:
            raise CannotGoOn(str(failure)) from failure
        if self.port.incarnation and self._learner is not None:
            request = PublishWeights(asker=self.port.name)
            try:
                async with asyncio.timeout(SOON_S):
                    published = await patiently(self.port, self._learner, request, WEIGHTS_DEADLINE_S)
            except TimeoutError:
                log.info("starting without weights: %s is at work", self._learner.name)
                self.port.start_task(self._catch_up(self._learner, request))
                return
            await self._take(published.version, published.blob)
            await self.port.blobs.drop(BlobRef(published.blob))
        await self._join()

    async def _catch_up(self, learner: ActorRef, request: PublishWeights) -> None:
        """Join when the learner has given its weights.

        If the director brings as new ones meanwhile, those count, and whoever watches this generator has it join.
        """
        published = await patiently(self.port, learner, request, WEIGHTS_DEADLINE_S)
        if published.version > self._newest:
            await self._take(published.version, published.blob)
            if self._version == published.version:
                await self._join()
        await self.port.blobs.drop(BlobRef(published.blob))

    async def _join(self) -> None:
        await patiently(self.port, self._balancer, JoinGenerator(capacity=self._announced()), DEADLINE_S)

    def _make_engine(self) -> Engine:
        port = self.port
        if isinstance(self._options, SimulatedOptions):
            assert self._script is not None, "a simulated engine needs a script"
            return SimulatedEngine(options=self._options, script=self._script, clock=port.clock)
        return VllmEngine(
            model=self._model,
            options=self._options,
            seed=port.random.getrandbits(32),
            clock=port.clock,
            offload=port.offload,
            spawn=port.start_task,
        )

    @property
    def engine(self) -> Engine:
        """The engine, for those who watch a run on the virtual stage."""
        return self._engine

    def kv_tokens(self) -> int:
        """Tokens of KV cache that the engine has."""
        return self._capacity.kv_tokens

    async def stop(self) -> None:
        await self._engine.close()

    async def work_done(self) -> int:
        """Of the engine. The jobs of its thread do not count: steps that sample nothing bring nobody forward."""
        return self._engine.work_done() + self.port.thread_work().seconds

    @handles(SampleTurn)
    async def on_sample(self, request: SampleTurn) -> TurnSampled:
        rollout = request.lease.rollout
        turns = self._turns.get(rollout, {})
        if request.turn in turns:  # asked again after a resend
            return await asyncio.shield(turns[request.turn])
        history = self._histories.get(rollout, [])
        stale = request.lease.incarnation != self.port.incarnation
        if stale or (request.known > len(history) and request.counted is None):
            return TurnSampled(finish="history_missing", version=self._version)
        if rollout in self._forgotten:
            return TurnSampled(finish="aborted", version=self._version)
        self._turns[rollout] = turns
        future: asyncio.Future[TurnSampled] = asyncio.get_running_loop().create_future()
        turns[request.turn] = future
        try:
            if request.seat is not None and not await self._waves.turn_begins(request.seat, rollout):
                sampled = TurnSampled(finish="aborted", version=self._version)
            else:
                new = tokens.unpack_ids(request.ids) if request.ids else []
                sampled = await self._sample(request, history[: request.known] + new)
        except BaseException as error:
            turns.pop(request.turn, None)
            future.set_exception(error)
            future.exception()  # whoever waited has it; nobody waiting is no fault
            raise
        future.set_result(sampled)
        return sampled

    async def _sample(self, request: SampleTurn, history: list[int]) -> TurnSampled:
        rollout = request.lease.rollout
        self._histories[rollout] = history
        result = await self._engine.sample(
            SampleRequest(
                id=f"{rollout}#{request.turn}",
                ids=history,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                stop_ids=request.stop_ids,
                seed=request.seed,
                counted=request.counted,
            )
        )
        if rollout in self._histories:  # not forgotten meanwhile
            self._histories[rollout] = history + result.ids
        self._turns_served += 1
        return TurnSampled(
            ids=tokens.pack_ids(result.ids) if result.ids else b"",
            logprobs=tokens.pack_floats(result.logprobs) if result.logprobs else b"",
            finish=result.finish,
            version=result.version,
            earlier=result.earlier,
            turn=result.turn,
        )

    @handles(ForgetRollout)
    async def on_forget(self, message: ForgetRollout) -> None:
        await self._forget(message.rollout)

    @handles(ForgetOwner)
    async def on_forget_owner(self, message: ForgetOwner) -> None:
        for rollout in [rollout for rollout in self._turns if owner_of(rollout) == message.owner]:
            await self._forget(rollout)

    @handles(LeaveWave)
    async def on_leave_wave(self, message: LeaveWave) -> None:
        self._waves.given_up(message.seat)

    async def _forget(self, rollout: str) -> None:
        self._waves.left(rollout)
        self._histories.pop(rollout, None)
        self._forgotten[rollout] = None
        if len(self._forgotten) > FORGOTTEN:
            self._forgotten.popitem(last=False)
        for turn, sampled in self._turns.pop(rollout, {}).items():
            if not sampled.done():
                await self._engine.abort(f"{rollout}#{turn}")

    @handles(UpdateWeights)
    async def on_update(self, request: UpdateWeights) -> Done:
        if request.version > self._version:  # else asked again after a resend, or overtaken by a later one
            self._newest = max(self._newest, request.version)
            await self._take(request.version, request.blob)
        return Done()

    async def _take(self, version: WeightsVersion, blob: str) -> None:
        weights = await self.port.blobs.get(BlobRef(blob))
        if version < self._newest:
            return
        await self._engine.update_weights(version, weights.items())
        self._version = version

    @handles(DescribeGenerator)
    async def on_describe(self, _: DescribeGenerator) -> GeneratorStatus:
        usage = self._engine.usage()
        return GeneratorStatus(
            capacity=self._announced(),
            engine=self._engine.kind,
            running=usage.running,
            turns_served=self._turns_served,
            generated_tokens=usage.generated_tokens,
            busy_seconds=usage.busy_seconds,
            kv_token_seconds=usage.kv_token_seconds,
            peak_memory_bytes=usage.peak_memory_bytes,
            version=self._version,
        )

    def _announced(self) -> Capacity:
        capacity: EngineCapacity = self._capacity
        return Capacity(
            generator=self.port.name,
            incarnation=self.port.incarnation,
            kv_tokens=capacity.kv_tokens,
            block_tokens=capacity.block_tokens,
            max_sequence_tokens=capacity.max_sequence_tokens,
        )
