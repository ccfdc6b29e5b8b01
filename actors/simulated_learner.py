"""An understudy of the learner: it answers as the learner does and spends modelled time; nothing is learned.

Invariants, as of the real one: a step id is trained on once, and a repeat gets the first one's answer; the version
rises by one with each step, and stays where a step had nothing to learn from; one that was started again says nothing
of its weights before it is told which checkpoint to restore.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actors.messages import (
    BeginStage,
    Learn,
    Learned,
    PublishWeights,
    RestoreCheckpoint,
    SaveCheckpoint,
    WeightsPublished,
    WriteCheckpoint,
)
from actors.published_weights import PublishedWeights
from actors.step_answers import StepAnswers
from actors.storage.checkpoints import write_checkpoint
from actors.supervision import Watched
from actors.system.actor import BlobRef, handles
from policies.batch import TrainingSequence
from policies.options import Options
from policies.trajectory import UNTRAINED, WeightsVersion


class LearnerCost(Options):
    """How long a learner takes. The defaults are ASSUMPTIONS: 14B parameters on 64 GPUs at 40% of 400 TFLOP/s each."""

    parameters: Annotated[float, Field(gt=0)] = 14.8e9
    flops: Annotated[float, Field(gt=0)] = 64 * 160e12
    """Floating-point operations per second of all its devices together."""
    step_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Of a step, whatever it holds."""
    publish_seconds: Annotated[float, Field(ge=0)] = 5.0
    """To hand weights over; once per step."""
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0

    def seconds(self, tokens: int) -> float:
        """One optimiser step: 8 FLOP per parameter and token, forward, backward and recomputed activations."""
        return self.step_seconds + 8.0 * self.parameters * tokens / self.flops


class SimulatedLearnerActor(Watched):
    """Stands in for `LearnerActor`."""

    def __init__(self, *, cost: LearnerCost, version: WeightsVersion = UNTRAINED) -> None:
        self._cost = cost
        self._version = version
        self._answers = StepAnswers[Learned]()
        self._published = PublishedWeights()
        self._has_weights = asyncio.Event()

    async def start(self) -> None:
        if not self.port.incarnation:
            self._has_weights.set()

    @handles(RestoreCheckpoint)
    async def on_restore(self, message: RestoreCheckpoint) -> None:
        await self.port.offload(lambda: self._cost.checkpoint_seconds, lambda: None)
        self._version = message.version
        self._answers.clear()
        self._has_weights.set()

    @handles(BeginStage)
    async def on_begin_stage(self, _: BeginStage) -> None:
        await self._has_weights.wait()

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        await self._has_weights.wait()
        return await self._answers.once(message.step_id, lambda: self._learn(message))

    async def _learn(self, message: Learn) -> Learned:
        batch: tuple[TrainingSequence, ...] = await self.port.blobs.get(BlobRef(message.blob))
        tokens = sum(sequence.length for sequence in batch)
        return await self.port.offload(lambda: self._cost.seconds(tokens), lambda: self._step(tokens))

    def _step(self, tokens: int) -> Learned:
        self._version = WeightsVersion(self._version.lineage, self._version.step + 1)
        return Learned(version=self._version, metrics={"skipped": 0.0, "learn_seconds": self._cost.seconds(tokens)})

    @handles(PublishWeights)
    async def on_publish_weights(self, message: PublishWeights) -> WeightsPublished:
        await self._has_weights.wait()
        version = await self.port.offload(lambda: self._cost.publish_seconds, lambda: self._version)
        ref = await self._published.put(self.port.blobs, message.asker, {})  # there are no weights
        return WeightsPublished(version=version, blob=ref.key)

    @handles(WriteCheckpoint)
    async def on_write_checkpoint(self, message: WriteCheckpoint) -> None:
        await self._has_weights.wait()
        await self.port.offload(
            lambda: self._cost.checkpoint_seconds,
            lambda: write_checkpoint(Path(message.folder), message.progress, lambda _: None, message.keep),
        )

    @handles(SaveCheckpoint)
    async def on_save_checkpoint(self, _: SaveCheckpoint) -> None:
        await self._has_weights.wait()
        await self.port.offload(lambda: self._cost.checkpoint_seconds, lambda: None)
