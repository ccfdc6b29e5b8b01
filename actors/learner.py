"""The actor that owns the model under training, or a shard of it.

Invariants:
- everything that touches the model runs on the actor's own thread, one job after another: no step is seen half done;
- a step id is trained on once: a repeat, even while the first is at work, gets the first one's answer;
- the version is `(lineage, step)`: it rises by one with each optimiser step and stays where a step had nothing to
  learn from;
- one that was started again after a death says nothing of its weights before it has restored a checkpoint;
- a group of learners does one thing at a time, all of them the same: others talk to the first, which has the rest take
  part. If one is lost, the group is: whatever is asked then and later fails, and says who was lost.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from actors.learning.checkpoint import write_checkpoint
from actors.learning.memory import in_memory
from actors.learning.model import Dtype, load_model
from actors.learning.sharding import DeviceType, LearnerGroup, Rendezvous, Store, join, whole_weights
from actors.learning.trainer import NonFiniteStep, Trainer, trainer_on_threads
from actors.learning.trainer_state import (
    restore_moments,
    restore_reference,
    restore_stage,
    restore_weights,
    take_part_in_writing,
    write_trainer,
)
from actors.messages import (
    BeginStage,
    GatherState,
    GatherWeights,
    JoinGroup,
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
from actors.storage import checkpoints
from actors.supervision import Watched
from actors.system.actor import ActorRef, BlobRef, CannotGoOn, handles, last_line
from actors.system.clock import seconds_since
from actors.system.kill_point import reached
from actors.system.message import Request
from policies.batch import TrainingSequence
from policies.trajectory import UNTRAINED, WeightsVersion

FLOPS = 1e11
"""Floating-point operations per second that virtual time assumes of a learner."""
TOGETHER_DEADLINE_S = 3600.0
REFUSALS = (ValueError, NonFiniteStep)
"""What all learners of a group raise alike, before anything has changed."""


class LearnerGroupBroken(CannotGoOn):
    """A learner of the group was lost, and its shard with it; the run can only go on from a checkpoint."""


class LearnerActor(Watched):
    """Trains a model loaded from `model`, a folder in Hugging Face format with its tokenizer."""

    def __init__(
        self,
        model: str,
        dtype: Dtype = "float32",
        threads: int = 1,
        seed: int = 0,
        deterministic: bool = False,
        checkpoint: str | None = None,
        version: WeightsVersion = UNTRAINED,
        device: DeviceType = "cpu",
        others: Sequence[ActorRef] = (),
        host: str = "127.0.0.1",
    ) -> None:
        """
        Args:
            threads: compute threads of this process.
            seed: of what a model draws (nothing, with dropout off).
            deterministic: same batches, same weights, bit for bit; an operation that can't promise it raises.
            checkpoint: where the state is that this learner goes on from, under the name `version`.
            others: the other learners of the group, if this is the first of one; they have been started.
            host: address at which they reach this process.
        """
        self._folder = Path(model)
        self._dtype: Dtype = dtype
        self._threads = threads
        self._seed = seed
        self._deterministic = deterministic
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._version = version
        self._device: DeviceType = device
        self._others = tuple(others)
        self._host = host
        self._group: LearnerGroup | None = None
        self._stage: BeginStage | None = None
        self._broken = ""
        """Why the group is no more."""
        self._in_turn = asyncio.Lock()
        self._has_weights = asyncio.Event()
        self._answers = StepAnswers[Learned]()
        self._published = PublishedWeights()

    async def start(self) -> None:
        if self.port.incarnation:  # which checkpoint is the newest, whoever directs the run will say
            return
        self._has_weights.set()
        self._trainer = await self.port.offload(lambda: 1.0, lambda: self._in_memory(self._load))
        if self._others:
            count = 1 + len(self._others)
            self._rendezvous = Rendezvous(self._host, count)
            requests = [
                JoinGroup(host=self._host, port=self._rendezvous.port, rank=rank, count=count)
                for rank in range(1, count)
            ]
            await self._together(requests, lambda: 1.0, lambda: self._shard(self._rendezvous.store, 0, count))

    def _load(self) -> Trainer:
        torch.manual_seed(self._seed)
        torch.use_deterministic_algorithms(self._deterministic)
        model = load_model(self._folder, self._dtype)
        torch.nn.Module.to(model, self._device)
        return self._restored(trainer_on_threads(model, self._threads))

    def _restored(self, trainer: Trainer) -> Trainer:
        if self._checkpoint is not None:
            restore_weights(trainer, self._checkpoint)
        return trainer

    async def stop(self) -> None:
        if self._group is not None:
            self._group.leave()

    @handles(JoinGroup)
    async def on_join(self, message: JoinGroup) -> None:
        if self._group is None:
            await self.port.offload(
                lambda: 1.0,
                lambda: self._shard(join(message.host, message.port, message.count), message.rank, message.count),
            )

    def _shard(self, store: Store, rank: int, count: int) -> None:
        self._group = LearnerGroup(store, rank, count, self._trainer.model)
        torch.set_num_threads(self._threads)
        self._trainer = self._restored(Trainer(self._trainer.model, group=self._group))

    @handles(RestoreCheckpoint)
    async def on_restore(self, message: RestoreCheckpoint) -> None:
        assert not self._others and self._group is None, "a group of learners is lost together"
        self._checkpoint = None if message.path is None else Path(message.path)
        self._trainer = await self.port.offload(lambda: 1.0, lambda: self._in_memory(self._load))
        self._version = message.version
        self._answers.clear()
        self._has_weights.set()

    @handles(BeginStage)
    async def on_begin_stage(self, message: BeginStage) -> None:
        await self._has_weights.wait()
        await self._together([message] * len(self._others), lambda: 0.0, lambda: self._begin_stage(message))

    def _begin_stage(self, message: BeginStage) -> None:
        self._stage = message
        is_first = self._trainer.optimiser is None
        self._trainer.begin_stage(
            message.optimiser,
            message.objective,
            message.total_steps,
            message.temperature,
            reset_optimiser=message.reset_optimiser,
            refresh_reference=message.refresh_reference,
        )
        if message.resumed:
            assert self._checkpoint is not None, "only a learner that began with a checkpoint can go on"
            restore_stage(self._trainer, self._checkpoint)
        elif is_first and self._checkpoint is not None:  # the stage before ended in another process
            if not message.reset_optimiser:
                restore_moments(self._trainer, self._checkpoint)
            if not message.refresh_reference:
                restore_reference(self._trainer, self._checkpoint)

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        await self._has_weights.wait()
        return await self._answers.once(message.step_id, lambda: self._learn(message))

    async def _learn(self, message: Learn) -> Learned:
        try:
            batch: tuple[TrainingSequence, ...] = await self.port.blobs.get(BlobRef(message.blob))
        except KeyError:
            if self._group is not None and not self._others:
                self._group.leave()  # the others are in the step already
            raise
        tokens = sum(sequence.length for sequence in batch)
        return await self._together(
            [message] * len(self._others),
            lambda: 6.0 * self._parameters() * tokens / FLOPS,
            lambda: self._step(message, batch),
        )

    def _step(self, message: Learn, batch: tuple[TrainingSequence, ...]) -> Learned:
        if message.kind == "fine_tune":
            reached("demonstrations")
        begun = self.port.clock.now_ns()
        metrics = self._trainer.step(message.kind, batch)
        if self._group is not None and self._group.rank:
            reached("ranks")
        if not metrics["skipped"]:
            self._version = WeightsVersion(self._version.lineage, self._version.step + 1)
        reached("learned")
        seconds = metrics["learn_seconds"] = seconds_since(self.port.clock, begun)
        metrics["tokens_per_s"] = metrics["tokens"] / seconds if seconds else 0.0
        metrics |= self._memory()
        return Learned(version=self._version, metrics=metrics)

    @handles(PublishWeights)
    async def on_publish_weights(self, message: PublishWeights) -> WeightsPublished:
        await self._has_weights.wait()
        version, weights = await self._together(
            [GatherWeights()] * len(self._others), lambda: 0.0, lambda: (self._version, self._weights())
        )
        ref = await self._published.put(self.port.blobs, message.asker, weights)
        return WeightsPublished(version=version, blob=ref.key)

    def _weights(self) -> dict[str, torch.Tensor]:
        """Copies, whole and on the CPU: the next step changes the weights in place."""
        weights = whole_weights(self._trainer.model, self._dtype)
        return {name: tensor.cpu().contiguous().clone() for name, tensor in weights}

    @handles(GatherWeights)
    async def on_gather_weights(self, _: GatherWeights) -> None:
        def take_part() -> None:
            for _ in whole_weights(self._trainer.model, self._dtype):
                pass

        await self._together([], lambda: 0.0, take_part)

    @handles(SaveCheckpoint)
    async def on_save_checkpoint(self, message: SaveCheckpoint) -> None:
        await self._has_weights.wait()

        def save() -> None:
            weights = None if self._group is None else self._weights()
            write_checkpoint(self._trainer.model, message.path, tokenizer_from=self._folder, weights=weights)

        await self._together([GatherWeights()] * len(self._others), lambda: 1.0, save)

    async def _together[T](self, requests: Sequence[Request], cost: Callable[[], float], work: Callable[[], T]) -> T:
        """Do `work` while the other learners answer `requests`, one each; returns what came of `work`.

        Raises what all learners refuse alike, and `LearnerGroupBroken` where one of them has failed on its own.
        """
        async with self._in_turn:
            if self._broken:
                raise LearnerGroupBroken(self._broken)
            outcome, *answers = await asyncio.gather(
                self.port.offload(cost, lambda: self._leaving_on_failure(work)),
                *[
                    self.port.ask(other, request, TOGETHER_DEADLINE_S, unless_at_work=True)
                    for other, request in zip(self._others, requests, strict=True)
                ],
                return_exceptions=True,
            )
            if isinstance(outcome, BaseException) and (isinstance(outcome, REFUSALS) or not self._others):
                raise outcome
            failures: dict[str, BaseException] = {
                other.name: answer
                for other, answer in zip(self._others, answers, strict=True)
                if isinstance(answer, BaseException)
            }
            if isinstance(outcome, BaseException):
                failures[self.port.name] = outcome
            if failures:
                raise self._break(failures)
            assert not isinstance(outcome, BaseException)
            return outcome

    def _break(self, failures: dict[str, BaseException]) -> LearnerGroupBroken:
        texts = "; ".join(f"{name}: {last_line(str(error) or repr(error))}" for name, error in failures.items())
        self._broken = (
            f"the group of {1 + len(self._others)} learners has lost a shard of the model, and can't go on; start from "
            f"the last checkpoint ({texts})"
        )
        broken = LearnerGroupBroken(self._broken)
        broken.__cause__ = next(iter(failures.values()))
        return broken

    def _leaving_on_failure[T](self, work: Callable[[], T]) -> T:
        """`work`; if it fails on this learner alone, the others must not wait for it in a collective."""
        try:
            return self._in_memory(work)
        except REFUSALS:
            raise
        except Exception:  # whatever it is, it is raised on
            if self._group is not None:
                self._group.leave()
            raise

    def _in_memory[T](self, work: Callable[[], T]) -> T:
        """`work`. Raises `OutOfMemory` where there is too little for it."""
        threads = self._threads if self._device == "cpu" else 1
        with in_memory(self.port.name, None if self._stage is None else self._stage.optimiser, threads):
            return work()

    @handles(WriteCheckpoint)
    async def on_write_checkpoint(self, message: WriteCheckpoint) -> None:
        await self._has_weights.wait()
        progress = message.progress
        assert progress.version == self._version, f"progress is at {progress.version}, the learner at {self._version}"
        await self._together(
            [GatherState()] * len(self._others),
            lambda: 1.0,
            lambda: checkpoints.write_checkpoint(
                Path(message.folder), progress, lambda folder: write_trainer(self._trainer, folder), message.keep
            ),
        )

    @handles(GatherState)
    async def on_gather_state(self, _: GatherState) -> None:
        await self._together([], lambda: 0.0, lambda: take_part_in_writing(self._trainer))

    def _memory(self) -> dict[str, float]:
        """The most that this process has ever held, in bytes."""
        figures = {"peak_memory_bytes": 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        device = self._trainer.model.device
        if device.type == "cuda":
            figures["peak_gpu_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
        return figures

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._trainer.model.parameters())
