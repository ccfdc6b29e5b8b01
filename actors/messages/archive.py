"""What the archive is asked, and what it answers."""

from __future__ import annotations

from actors.system.message import Done, Message, Request
from policies.grouping import TrainedGroup
from policies.run_progress import ArchivePosition
from policies.trajectory import Trajectory, WeightsVersion


class StoreTrajectory(Request[Done], tag="archive.store"):
    """Append a trajectory; answered once the operating system has it. Repeats are dropped."""

    trajectory: Trajectory


class ArchiveStatus(Message, tag="archive.status"):
    trajectories: int
    """All in the archive."""


class DescribeArchive(Request[ArchiveStatus], tag="archive.describe"):
    """Bring the index up to date, and say how much there is."""


class RecordTrainedStep(Request[Done], tag="archive.trained"):
    """Note what a step has learned from; answered once the operating system has it. Repeats are dropped."""

    stage: str
    step: int
    """Within the stage, from 0."""
    version: WeightsVersion
    """That the step led to."""
    groups: tuple[TrainedGroup, ...]
    taken: tuple[str, ...]
    """Ids of all groups of the step, in the order in which resampling had them, those without signal among them."""
    digest: str
    """SHA-256 of all that the learner was given."""


class ArchiveSettled(Message, tag="archive.settled"):
    position: ArchivePosition


class SettleArchive(Request[ArchiveSettled], tag="archive.settle"):
    """Have the disk hold all that was stored; answered with how much that is."""


class StoredRollouts(Message, tag="archive.stored_rollouts"):
    ids: tuple[str, ...]


class FindRollouts(Request[StoredRollouts], tag="archive.find"):
    """Which rollouts of a step are stored, of those that were sampled by these versions of the weights alone.

    The archive keeps them at hand until it is asked for another step's.
    """

    stage: str
    step: int
    versions: tuple[WeightsVersion, ...]


class StoredTrajectory(Message, tag="archive.stored_trajectory"):
    trajectory: Trajectory


class ReadRollout(Request[StoredTrajectory], tag="archive.read"):
    """The trajectory of a rollout that `FindRollouts` has named."""

    id: str


class CutTrainedSteps(Request[Done], tag="archive.cut"):
    """Keep the first `count` lines of the ledger: the others tell of weights that are lost."""

    count: int
