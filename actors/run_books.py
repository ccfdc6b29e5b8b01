"""What a run has done, and the checkpoints that say so.

Invariants:
- a checkpoint is written between two steps, when what they have sampled is with the archive and on the disk: what it
  says of learner, position and archive belongs together;
- what has not been told yet (reports that nobody has fetched) is in the checkpoint, so that no step goes untold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field

from actors.messages import SettleArchive, WriteCheckpoint
from actors.supervision import patiently
from actors.system.actor import ActorRef, Port
from actors.system.clock import seconds_since
from policies.options import Options
from policies.run_progress import Figures, RunProgress, StagePosition, StepFigures
from policies.trajectory import WeightsVersion

DEADLINE_S = 3600.0

type Stepped = Callable[[StagePosition, WeightsVersion, StepFigures], Awaitable[None]]
"""Told of each step that is done: where the stage is, the weights that it led to, what there is to tell."""


class CheckpointPlan(Options):
    """Where checkpoints go, and how often."""

    folder: str
    interval_seconds: Annotated[float, Field(ge=0)]
    keep: Annotated[int, Field(ge=1)]


class RunBooks:
    """The books of one run.

    Args:
        plan: None writes no checkpoints.
        progress: what the run has done so far.
        untold: the figures that nobody has fetched yet.
    """

    def __init__(
        self,
        port: Port,
        *,
        learner: ActorRef,
        archive: ActorRef,
        plan: CheckpointPlan | None,
        progress: RunProgress,
        untold: Callable[[], tuple[StepFigures, ...]],
    ) -> None:
        self._port, self._learner, self._archive, self._plan = port, learner, archive, plan
        self._progress, self._untold = progress, untold
        self._written_ns = port.clock.now_ns()

    def go_back_to(self, progress: RunProgress) -> None:
        """What was done after `progress` did not happen."""
        self._progress, self._written_ns = progress, self._port.clock.now_ns()

    def all_done(self) -> tuple[str, ...]:
        """Stages and evaluations that have ended, oldest first."""
        return tuple(self._progress.done)

    def reached(self) -> tuple[int, int]:
        """How far the run has come: stages and evaluations that have ended, and steps of the stage at work."""
        current = self._progress.current
        return len(self._progress.done), 0 if current is None else current.steps

    def place(self) -> str:
        """The same in words."""
        return self._progress.place()

    def done(self, name: str) -> Figures | None:
        """The figures of a stage or evaluation that has ended."""
        return self._progress.done.get(name)

    def position(self, stage: str) -> StagePosition | None:
        """Where a stage goes on; None if it begins."""
        current = self._progress.current
        return current if current is not None and current.stage == stage and current.steps else None

    async def stepped(self, position: StagePosition, version: WeightsVersion) -> None:
        """A step is done."""
        self._progress = self._progress.model_copy(update={"current": position, "version": version})
        if self._plan and seconds_since(self._port.clock, self._written_ns) >= self._plan.interval_seconds:
            await self._write()

    async def ended(self, name: str, figures: Figures, version: WeightsVersion) -> None:
        """A stage or an evaluation has come to its end."""
        done = self._progress.done | {name: figures}
        self._progress = self._progress.model_copy(update={"done": done, "current": None, "version": version})
        if self._plan:
            await self._write()

    async def _write(self) -> None:
        assert self._plan is not None
        archive = (await patiently(self._port, self._archive, SettleArchive(), DEADLINE_S)).position
        progress = self._progress.model_copy(update={"archive": archive, "untold": self._untold()})
        request = WriteCheckpoint(folder=self._plan.folder, keep=self._plan.keep, progress=progress)
        await self._port.ask(self._learner, request, DEADLINE_S, unless_at_work=True)
        self._progress, self._written_ns = progress, self._port.clock.now_ns()
