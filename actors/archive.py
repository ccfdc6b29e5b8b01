"""The archive actor: owns the archive of a run. How it is stored is `actors.storage`'s business.

Invariants:
- a trajectory that was answered for has been handed to the operating system, and is stored once;
- the loop never waits for a disk to sync: segments that are full are settled on the actor's own thread.
"""

from __future__ import annotations

from pathlib import Path

from actors.messages import ArchiveStatus, DescribeArchive, StoreTrajectory
from actors.storage.writer import SEGMENT_BYTES, ArchiveWriter
from actors.system.actor import Actor, handles
from actors.system.message import Done

SYNC_SECONDS = 0.5
"""What syncing a full segment takes, for virtual time."""


class ArchiveActor(Actor):
    """Owns the archive of a run.

    Its start raises `ArchiveInUse` if another writer has the folder open.
    """

    def __init__(self, *, folder: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._segment_bytes = Path(folder), segment_bytes

    async def start(self) -> None:
        self._writer = ArchiveWriter(self._folder, self._segment_bytes)

    async def stop(self) -> None:
        self._writer.close()

    @handles(StoreTrajectory)
    async def on_store(self, request: StoreTrajectory) -> Done:
        self._writer.append(request.trajectory)
        if self._writer.has_finished_segments:
            await self.port.offload(lambda: SYNC_SECONDS, self._writer.settle)
        return Done()

    @handles(DescribeArchive)
    async def on_describe(self, _: DescribeArchive) -> ArchiveStatus:
        self._writer.flush()
        return ArchiveStatus(trajectories=self._writer.trajectories, bytes_written=self._writer.bytes_written)
