"""What learners are asked, and what they answer."""

from __future__ import annotations

from typing import Literal

from actors.system.message import Done, Message, Request
from policies.options import ObjectiveOptions, OptimiserOptions
from policies.run_progress import RunProgress
from policies.trajectory import WeightsVersion


class BeginStage(Request[Done], tag="learner.begin"):
    """Set the options of what follows; optimiser and reference start afresh unless they are to be kept."""

    optimiser: OptimiserOptions
    objective: ObjectiveOptions
    total_steps: int
    temperature: float = 1.0
    """Sampling temperature of the rollouts: the learner divides its logits by it."""
    reset_optimiser: bool = True
    refresh_reference: bool = True
    resumed: bool = False
    """Whether the stage goes on where the checkpoint that the learner began with has left it, optimiser and all."""


class Learned(Message, tag="learner.learned"):
    """One optimiser step, done."""

    version: WeightsVersion
    metrics: dict[str, float]


class Learn(Request[Learned], tag="learner.learn"):
    """One optimiser step on a batch. Repeating a step id does not train twice."""

    step_id: str
    kind: Literal["fine_tune", "reinforce"]
    blob: str
    """Key of a blob: a tuple of `policies.batch.TrainingSequence`."""


class WeightsPublished(Message, tag="learner.published"):
    version: WeightsVersion
    blob: str


class PublishWeights(Request[WeightsPublished], tag="learner.publish"):
    """Put the current weights into the object store; the caller drops the blob when all engines have it.

    What the same asker was given before is dropped, if it has not done that: it may have died in between.
    """

    asker: str
    """Name of the actor that asks."""


class SaveCheckpoint(Request[Done], tag="learner.save"):
    """Write the model in Hugging Face format, aside first, then renamed to `path`."""

    path: str


class WriteCheckpoint(Request[Done], tag="learner.checkpoint"):
    """Write what a run is resumed from (`actors.storage.checkpoints`): the learner's state, and `progress`."""

    folder: str
    """Of all the run's checkpoints."""
    keep: int
    progress: RunProgress


class JoinGroup(Request[Done], tag="learner.join"):
    """From the first learner to the others: the model is sharded over all of you. Each answers when all are there."""

    host: str
    port: int
    rank: int
    count: int


class GatherWeights(Request[Done], tag="learner.gather"):
    """From the first learner to the others: send it your shards."""


class GatherState(Request[Done], tag="learner.gather_state"):
    """From the first learner to the others: send it your shards of all that a run is resumed from."""


class RestoreCheckpoint(Request[Done], tag="learner.restore"):
    """To a learner that was started again: be what a checkpoint holds. Until then it answers nothing of its weights."""

    path: str | None
    """The checkpoint's folder; None: the model that training starts from."""
    version: WeightsVersion
    """What these weights are called from now on."""
