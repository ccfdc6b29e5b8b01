"""How far a run has come: what a checkpoint says beside weights and moments, and which records of the past still count.

Invariants:
- draws are seeded by what they are for (run, stage, step, rollout, turn), so there are no random states to keep: a
  position is all that a stage needs to go on;
- what was done after a checkpoint did not happen, once a run goes on from it: it is done again from the same position.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import Field

from policies.trajectory import UNTRAINED, Record, WeightsVersion

type Figures = dict[str, float | None]
"""By name; None where there was nothing to measure."""


class StepFigures(Record):
    """What a step or an evaluation has to tell, as metrics have it."""

    kind: Literal["fine_tune", "step", "evaluation", "event"]
    stage: str
    step: int
    figures: Figures


class StagePosition(Record):
    """Where a stage of learning is."""

    stage: str
    steps: int
    """Steps done."""
    cursor: int
    """Of the stage's data: how many problems were posed, or how many demonstrations were learned from."""
    under_way: tuple[int, ...] = ()
    """In asynchronous training: positions of problems that were posed and whose groups were neither learned from nor
    dropped; they are begun again."""
    history: tuple[Figures, ...] = ()
    """Of the last steps, the figures that the stage's rule for moving on reads, if it has one (`policies.move_on`)."""


class ArchivePosition(Record):
    """What an archive held, on the disk, at one moment."""

    trajectories: int
    """All that were stored, by whichever incarnation of the run."""
    trained_steps: int
    """Lines of its ledger of trained steps."""


class RunProgress(Record):
    """What a run has done, and what of it has not been told yet."""

    version: WeightsVersion
    done: dict[str, Figures] = Field(default_factory=dict)
    """Stages and evaluations (`evaluation-NAME`) that have come to their end -> their figures."""
    current: StagePosition | None = None
    """The stage at work; None between stages."""
    archive: ArchivePosition = ArchivePosition(trajectories=0, trained_steps=0)
    untold: tuple[StepFigures, ...] = ()
    """What was reported and may have reached nobody."""

    def place(self) -> str:
        """In words, how far the run has come."""
        if self.current is not None:
            return f"after step {self.current.steps} of {self.current.stage}"
        return f"after {list(self.done)[-1]}" if self.done else "before the first step"

    def counts(self, kind: str, stage: str, step: int) -> bool:
        """Whether a line of metrics tells of something that is part of this progress, and is not told again."""
        if any((each.kind, each.stage, each.step) == (kind, stage, step) for each in self.untold):
            return False
        if kind == "evaluation":
            return f"evaluation-{stage}" in self.done
        if kind not in ("fine_tune", "step"):
            return True  # events tell of what happened, whatever came of it
        at_work = self.current is not None and self.current.stage == stage and step <= self.current.steps
        return stage in self.done or at_work


class Rewound(Record):
    """The run went back to a checkpoint: what was told of later steps did not happen."""

    kind: Literal["rewound"] = "rewound"
    progress: RunProgress
    """What still counts; what it has untold is told again after this."""
    place: str
    why: str


type Report = StepFigures | Rewound
"""What a run tells whoever drives it."""


def that_count(reports: Sequence[Report]) -> list[StepFigures]:
    """All reports of a run, none of which had been fetched before, without those of what it has gone back before.

    What still counts of these is told again after each return.
    """
    counted: list[StepFigures] = []
    for report in reports:
        if isinstance(report, Rewound):
            counted = []
        else:
            counted.append(report)
    return counted


NOTHING_DONE = RunProgress(version=UNTRAINED)


class Restoration(Record):
    """One resumption of a run, or its return to a checkpoint."""

    lineage: int
    """Of the weights versions that followed."""
    checkpoint: str
    """Name of the checkpoint that was restored; empty where there was none, and the run began anew."""
    wall_seconds: float = 0.0
    """That the run had taken by then; not known of those within a run."""
    within_run: bool = False
    """Whether the run had only lost its learner, and was not resumed."""


def next_lineage(restorations: Collection[Restoration]) -> int:
    """The lineage that the next restoration begins."""
    return 1 + max((each.lineage for each in restorations), default=0)


def same_weights(
    version: WeightsVersion, checkpoint: str, restorations: Collection[Restoration]
) -> tuple[WeightsVersion, ...]:
    """All versions that name the weights of a checkpoint: its own, and what later lineages that began with it call it.

    What these have sampled was sampled by the weights that are restored; what any other lineage sampled was not.
    """
    restored = [each.lineage for each in restorations if checkpoint and each.checkpoint == checkpoint]
    return (version, *[version._replace(lineage=lineage) for lineage in restored])
