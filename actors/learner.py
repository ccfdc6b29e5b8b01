"""The actor that owns the model under training.

Invariants:
- everything that touches the model runs on the actor's own thread, one job after another: no step is seen half done;
- a step id is trained on once: a repeat, even while the first is at work, gets the first one's answer;
- the version is `(lineage, step)`: it rises by one with each optimiser step and stays where a step had nothing to
  learn from.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import torch

from actors.learning.checkpoint import write_checkpoint
from actors.learning.model import Dtype, load_model, named_weights
from actors.learning.trainer import Trainer, trainer_on_threads
from actors.messages import BeginStage, Learn, Learned, PublishWeights, SaveCheckpoint, WeightsPublished
from actors.system.actor import Actor, BlobRef, handles
from actors.system.clock import seconds_since
from policies.batch import TrainingSequence
from policies.trajectory import WeightsVersion

FLOPS = 1e11
"""Floating-point operations per second that virtual time assumes of a learner."""


class LearnerActor(Actor):
    """Trains a model loaded from `model`, a folder in Hugging Face format with its tokenizer."""

    def __init__(self, model: str, dtype: Dtype = "float32", threads: int = 1, seed: int = 0) -> None:
        """`threads`: compute threads of this process. `seed`: of what a model draws (nothing, with dropout off)."""
        self._folder = Path(model)
        self._dtype: Dtype = dtype
        self._threads = threads
        self._seed = seed
        self._version = WeightsVersion(lineage=0, step=0)
        self._answers: dict[str, asyncio.Future[Learned]] = {}

    async def start(self) -> None:
        self._trainer = await self.port.offload(lambda: 1.0, self._load)

    def _load(self) -> Trainer:
        torch.manual_seed(self._seed)
        return trainer_on_threads(load_model(self._folder, self._dtype), self._threads)

    @handles(BeginStage)
    async def on_begin_stage(self, message: BeginStage) -> None:
        await self.port.offload(
            lambda: 0.0,
            lambda: self._trainer.begin_stage(
                message.optimiser, message.objective, message.total_steps, message.temperature
            ),
        )

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        answer = self._answers.get(message.step_id)
        if answer is None:
            # A task of its own: whoever asked first may be gone before the step is done, and the step must still count.
            answer = self._answers[message.step_id] = asyncio.ensure_future(self._learn(message))
            answer.add_done_callback(lambda done: self._forget_failure(message.step_id, done))
        return await asyncio.shield(answer)

    def _forget_failure(self, step_id: str, answer: asyncio.Future[Learned]) -> None:
        """A step that failed has changed nothing: its id may be tried again."""
        if answer.cancelled() or answer.exception() is not None:
            del self._answers[step_id]

    async def _learn(self, message: Learn) -> Learned:
        batch: tuple[TrainingSequence, ...] = await self.port.blobs.get(BlobRef(message.blob))
        tokens = sum(sequence.length for sequence in batch)
        return await self.port.offload(
            lambda: 6.0 * self._parameters() * tokens / FLOPS, lambda: self._step(message, batch)
        )

    def _step(self, message: Learn, batch: tuple[TrainingSequence, ...]) -> Learned:
        begun = self.port.clock.now_ns()
        metrics = self._trainer.step(message.kind, batch)
        if not metrics["skipped"]:
            self._version = WeightsVersion(self._version.lineage, self._version.step + 1)
        seconds = metrics["learn_seconds"] = seconds_since(self.port.clock, begun)
        metrics["tokens_per_s"] = metrics["tokens"] / seconds if seconds else 0.0
        metrics |= self._memory()
        return Learned(version=self._version, metrics=metrics)

    @handles(PublishWeights)
    async def on_publish_weights(self, message: PublishWeights) -> WeightsPublished:
        version, weights = await self.port.offload(lambda: 0.0, self._copy_weights)
        ref = await self.port.blobs.put(weights)
        return WeightsPublished(version=version, blob=ref.key)

    def _copy_weights(self) -> tuple[WeightsVersion, dict[str, torch.Tensor]]:
        """Copies: the next step changes the weights in place."""
        weights = named_weights(self._trainer.model)
        return self._version, {name: tensor.cpu().contiguous().clone() for name, tensor in weights.items()}

    @handles(SaveCheckpoint)
    async def on_save_checkpoint(self, message: SaveCheckpoint) -> None:
        await self.port.offload(
            lambda: 1.0, lambda: write_checkpoint(self._trainer.model, message.path, tokenizer_from=self._folder)
        )

    def _memory(self) -> dict[str, float]:
        """The most that this process has ever held, in bytes."""
        figures = {"peak_memory_bytes": 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        device = self._trainer.model.device
        if device.type == "cuda":
            figures["peak_gpu_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
        return figures

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._trainer.model.parameters())
