"""What follows the death of the learner: the run goes back to its newest whole checkpoint, and on from there.

Invariants:
- work that rests on the weights that were lost is ended, before anything is restored: rollouts, and the step at work;
- the restored weights have a lineage of their own, and the ledger holds the steps that they hold;
- a run whose learner dies again and again, and that gets no further in between, ends and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.messages import (
    AbandonRollouts,
    AwaitEnd,
    CutTrainedSteps,
    Identify,
    RestoreCheckpoint,
)
from actors.run_books import CheckpointPlan
from actors.storage.checkpoints import newest_checkpoint, set_aside_damaged
from actors.storage.restorations import note_restoration
from actors.supervision import DEADLINE_S, PAUSE_S, insist, patiently
from actors.system.actor import ActorError, ActorLost, ActorRef, CannotGoOn, DeadlineExceeded, Port
from policies.rewinds import Rewinds
from policies.run_progress import RunProgress, same_weights
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

READ_SECONDS = 1.0
"""What reading a checkpoint takes, for virtual time."""
RESTORE_DEADLINE_S = 3600.0
LOOK_FOR_MEMORY = (
    "See logs/learner.log. If that says nothing, the kernel may have killed it for memory (`dmesg` tells): lower "
    "stages.*.optimiser.micro_batch_tokens, or give it more memory"
)
"""What to do about a learner that dies again and again."""


class LearnerLost(ActorError):
    """The learner died, and what it had learned since the last checkpoint with it."""


class RunStuck(CannotGoOn):
    """The learner dies again and again, and the run gets no further."""


class LearnerGuard:
    """Has work done that is void as soon as the learner dies."""

    def __init__(self, port: Port, learner: ActorRef) -> None:
        self._port, self._learner = port, learner
        self._incarnation = 0
        self._lost = ""

    def renew(self, incarnation: int) -> None:
        """The learner of this incarnation has what the run goes on from."""
        self._incarnation, self._lost = incarnation, ""

    async def while_it_lives[T](self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`. Raises `LearnerLost`, when `work` has been cancelled, and what `work` raises."""
        task = asyncio.ensure_future(work)
        watch = self._port.start_task(self._watch(task))
        try:
            return await task
        except asyncio.CancelledError:
            if self._lost:
                raise LearnerLost(self._lost) from None
            raise
        except ActorError as error:  # perhaps since the learner is gone, which is noticed in a moment
            await self._port.clock.sleep(PAUSE_S)
            if self._lost or await self._is_another():
                raise LearnerLost(self._lost or str(error)) from error
            raise
        finally:
            watch.cancel()
            task.cancel()

    async def _watch(self, work: asyncio.Task[Any]) -> None:
        self._lost = f"{self._learner.name} was started again"
        if not await self._is_another():
            self._lost = ""
            try:
                await self._port.ask(self._learner, AwaitEnd())
            except ActorError as error:
                self._lost = str(error)
        work.cancel()

    async def _is_another(self) -> bool:
        """Whether the learner is dead, or another incarnation. One that does not answer at all is killed in time."""
        while True:
            try:
                return (await self._port.ask(self._learner, Identify(), DEADLINE_S)).incarnation != self._incarnation
            except ActorLost:
                return True
            except DeadlineExceeded as late:
                log.warning("%s does not say who it is: %s", self._learner.name, late)


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run goes on."""

    progress: RunProgress
    earlier_names: tuple[WeightsVersion, ...]
    """What the restored weights were called before."""
    place: str
    """In words."""


class Rewinding:
    """Takes a run back.

    Args:
        plan: where its checkpoints are; None: it has none.
        beginning: what it began with.
    """

    def __init__(
        self,
        port: Port,
        *,
        learner: ActorRef,
        archive: ActorRef,
        rollouts: Sequence[ActorRef],
        plan: CheckpointPlan | None,
        beginning: RunProgress,
    ) -> None:
        self._port, self._learner, self._archive, self._rollouts = port, learner, archive, list(rollouts)
        self._plan, self._beginning = plan, beginning
        self._lineage = beginning.version.lineage
        self._rewinds = Rewinds()

    async def go_back(self, why: str, reached: tuple[int, int], place: str) -> tuple[Restored, int]:
        """Restore the newest checkpoint; returns what it holds, and the learner's incarnation that holds it now.

        Args:
            reached: how far the run had come, as `policies.rewinds` counts it, and `place` says it in words.

        Raises `RunStuck`, and `ActorLost` if the learner does not come back.
        """
        await asyncio.gather(*[insist(self._port, ref, AbandonRollouts()) for ref in self._rollouts])
        restored, path = await self._port.offload(lambda: READ_SECONDS, self._read)
        if not self._rewinds.may_go_back_from(reached):
            raise RunStuck(
                f"the learner died {self._rewinds.in_a_row} times, this time {place}, and the run came no further in "
                f"between; its death: {why.rstrip('.')}. {LOOK_FOR_MEMORY}"
            )
        log.warning("going back to %s: %s", restored.place, why)
        await patiently(self._port, self._archive, CutTrainedSteps(count=restored.progress.archive.trained_steps))
        request = RestoreCheckpoint(path=path, version=restored.progress.version)
        while True:
            identity = await patiently(self._port, self._learner, Identify())
            try:
                await self._port.ask(self._learner, request, RESTORE_DEADLINE_S, unless_at_work=True)
                return restored, identity.incarnation
            except ActorLost as lost:
                log.warning("the learner died while it was restored: %s", lost)
                if not self._rewinds.may_go_back_from(reached):
                    why = str(lost).rstrip(".")
                    raise RunStuck(
                        f"the learner dies each time that it is restored {restored.place}: {why}. {LOOK_FOR_MEMORY}"
                    ) from lost

    def _read(self) -> tuple[Restored, str | None]:
        if self._plan is None:
            self._lineage += 1
            version = self._beginning.version._replace(lineage=self._lineage)
            return Restored(self._beginning.model_copy(update={"version": version}), (), "to its beginning"), None
        folder = Path(self._plan.folder)
        checkpoint, faults = newest_checkpoint(folder)
        for fault in faults:
            log.warning("damaged: %s", fault)
        set_aside_damaged(folder, checkpoint)
        progress = self._beginning if checkpoint is None else checkpoint.progress
        name = "" if checkpoint is None else checkpoint.path.name
        known = note_restoration(folder.parent, name, within_run=True)
        names = () if checkpoint is None else same_weights(progress.version, name, known[:-1])
        version = progress.version._replace(lineage=known[-1].lineage)
        return (
            Restored(progress.model_copy(update={"version": version}), names, where(name, progress)),
            None if checkpoint is None else str(checkpoint.path),
        )


def where(checkpoint: str, progress: RunProgress) -> str:
    """In words, where a run goes on; `checkpoint` is its name, empty if there is none."""
    if not checkpoint:
        return "from the beginning: the run had no checkpoint yet"
    return f"{progress.place()} (checkpoint {checkpoint})"
