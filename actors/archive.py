"""The archive actor: owns the archive of a run. How it is stored is `actors.storage`'s business.

Invariants:
- a trajectory that was answered for has been handed to the operating system, and is stored once;
- the loop never waits for a disk to sync: segments that are full are settled on the actor's own thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from actors.messages import (
    ArchiveSettled,
    ArchiveStatus,
    CutTrainedSteps,
    DescribeArchive,
    FindRollouts,
    ReadRollout,
    RecordTrainedStep,
    SettleArchive,
    StoredRollouts,
    StoredTrajectory,
    StoreTrajectory,
)
from actors.storage.disk import writing
from actors.storage.frames import ArchiveCorrupt
from actors.storage.index import IndexRow
from actors.storage.reader import Archive, read_row
from actors.storage.trained_steps import TrainedSteps, cut_trained_steps
from actors.storage.writer import SEGMENT_BYTES, ArchiveWriter
from actors.system.actor import Actor, handles
from actors.system.kill_point import reached
from policies.run_progress import ArchivePosition

SYNC_SECONDS = 0.5
"""What syncing a full segment takes, for virtual time."""


class ArchiveActor(Actor):
    """Owns the archive of a run.

    Its start raises `ArchiveInUse` if another writer has the folder open. Whatever writes raises `CannotWrite` where
    the file system does not take it.
    """

    def __init__(self, *, folder: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._segment_bytes = Path(folder), segment_bytes

    async def start(self) -> None:
        with writing(self._folder):
            self._writer = ArchiveWriter(self._folder, self._segment_bytes)
            self._trained = TrainedSteps(self._folder)
        self._found: dict[str, IndexRow] = {}
        """Where the rollouts are that were found last: they themselves may be a step's worth of memory."""

    def vanish(self) -> None:
        self._writer.vanish()

    async def stop(self) -> None:
        self._trained.close()
        self._writer.close()

    @handles(StoreTrajectory)
    async def on_store(self, request: StoreTrajectory) -> None:
        reached("archive")
        with writing(self._folder):
            self._writer.append(request.trajectory)
            if self._writer.has_finished_segments:
                await self.port.offload(lambda: SYNC_SECONDS, self._writer.settle)

    @handles(RecordTrainedStep)
    async def on_trained(self, request: RecordTrainedStep) -> None:
        with writing(self._folder):
            self._trained.append(
                request.stage, request.step, request.version, request.groups, request.taken, request.digest
            )

    @handles(CutTrainedSteps)
    async def on_cut(self, request: CutTrainedSteps) -> None:
        with writing(self._folder):
            self._trained.close()
            cut_trained_steps(self._folder, request.count)
            self._trained = TrainedSteps(self._folder)

    @handles(SettleArchive)
    async def on_settle(self, _: SettleArchive) -> ArchiveSettled:
        position = ArchivePosition(trajectories=self._writer.stored, trained_steps=self._trained.count)
        await self.port.offload(lambda: SYNC_SECONDS, self._sync)
        return ArchiveSettled(position=position)

    def _sync(self) -> None:
        with writing(self._folder):
            self._writer.sync()
            self._trained.sync()

    @handles(FindRollouts)
    async def on_find(self, request: FindRollouts) -> StoredRollouts:
        self._found = await self.port.offload(lambda: SYNC_SECONDS, lambda: self._find(request))
        return StoredRollouts(ids=tuple(self._found))

    def _find(self, request: FindRollouts) -> dict[str, IndexRow]:
        """By rollout. What is damaged counts as not there: it is played again."""
        archive, found = Archive(self._folder), {}
        for row in archive.rows:
            if (row.stage, row.step) != (request.stage, request.step) or row.finish == "sandbox_failure":
                continue
            with contextlib.suppress(ArchiveCorrupt):
                if set(archive.read(row).versions) <= set(request.versions):
                    found[row.id] = row
        return found

    @handles(ReadRollout)
    async def on_read(self, request: ReadRollout) -> StoredTrajectory:
        row = self._found[request.id]
        return StoredTrajectory(trajectory=await self.port.offload(lambda: 0.0, lambda: read_row(self._folder, row)))

    @handles(DescribeArchive)
    async def on_describe(self, _: DescribeArchive) -> ArchiveStatus:
        with writing(self._folder):
            self._writer.flush()
        return ArchiveStatus(trajectories=self._writer.stored)
