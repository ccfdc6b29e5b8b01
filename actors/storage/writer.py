"""Writing an archive: one writer, segments that are only appended to, rotation.

Invariants:
- one writer at a time: the lock is the operating system's (`flock`), so it goes with the process that holds it;
- a trajectory that `append` returned from has been handed to the operating system: the process may crash, it stays;
- the same trajectory under the same id is stored once; another attempt under the same id (a resumed run rolls out
  again what it lost) is stored beside the first;
- segments are only ever appended to; a new writer begins a new segment.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO
from zlib import crc32

from actors.storage.fingerprints import Fingerprints
from actors.storage.frames import ArchiveInUse, FrameFile
from actors.storage.index import IndexWriter, index_path, row_of
from actors.storage.reader import SEGMENT_MAGIC, Archive, segment_path, segments
from policies.trajectory import SCHEMA_VERSION, Trajectory

LOCK_FILE = "writer.lock"
SEGMENT_BYTES = 64 << 20
"""A segment that has grown beyond this is finished and the next one begun."""


def lock(folder: Path) -> TextIO:
    """Become the folder's only writer until the returned file is closed, or the process ends.

    Raises `ArchiveInUse` if another is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = (folder / LOCK_FILE).open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.seek(0)
        owner = held.read().strip() or "unknown"
        held.close()
        raise ArchiveInUse(
            f"{folder} is being written to by process {owner}; wait for its end, or write to another folder"
        ) from None
    held.truncate(0)
    held.write(str(os.getpid()))
    held.flush()
    return held


def _next_number(folder: Path) -> int:
    return max((number for number, _ in segments(folder)), default=-1) + 1


class _Segment:
    """A segment that is being written, with its index."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number, self.path = number, segment_path(folder, number)
        self.file = FrameFile(self.path, SEGMENT_MAGIC)
        self.file.append(self.file.pack({"schema": SCHEMA_VERSION}))
        self._index = IndexWriter(index_path(self.path))

    def append(self, trajectory: Trajectory, payload: bytes) -> None:
        """Store a trajectory, packed as `payload`."""
        offset, end = self.file.append(payload)
        self._index.add(row_of(trajectory, segment=self.number, offset=offset, end=end, checksum=crc32(payload)))

    def flush(self) -> None:
        self._index.flush()

    def close(self) -> None:
        """Wait until the disk has it all, then close."""
        try:
            self.file.sync()
            self._index.close()
        finally:
            self.file.close()


class ArchiveWriter:
    """Appends trajectories to the archive in `folder`, which is made if need be.

    Raises `ArchiveInUse` if another writer has it open, `ArchiveCorrupt` for a schema that this version can't read,
    `OSError` as the file system does.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        with ExitStack() as undo:
            self._lock = undo.enter_context(lock(folder))
            self._stored = Fingerprints((row.id, row.checksum) for row in Archive(folder).rows)
            self._segment = _Segment(folder, _next_number(folder))
            undo.pop_all()
        self._finished: list[_Segment] = []

    @property
    def path(self) -> Path:
        """The segment that is being written."""
        return self._segment.path

    @property
    def has_finished_segments(self) -> bool:
        """Whether there is something for `settle` to do."""
        return bool(self._finished)

    @property
    def stored(self) -> int:
        """All that the archive holds, by whichever writer."""
        return len(self._stored)

    def append(self, trajectory: Trajectory) -> None:
        """Store a trajectory, unless it is stored already.

        Raises `OSError` as the file system does; appending it again is then right in any case.
        """
        if self._segment.file.size >= self._segment_bytes:
            following = _Segment(self._folder, _next_number(self._folder))
            self._finished.append(self._segment)
            self._segment = following
        payload = self._segment.file.pack(trajectory.__dict__)
        known = (trajectory.id, crc32(payload))
        if known not in self._stored:
            self._segment.append(trajectory, payload)
            self._stored.add(*known)

    def flush(self) -> None:
        """Bring the index up to date."""
        self._segment.flush()

    def settle(self) -> None:
        """Wait until the disk has the segments that are full. May be run beside `append`, on another thread."""
        while self._finished:
            self._finished.pop().close()

    def sync(self) -> None:
        """Wait until the disk has all that was appended before. May be run beside `append`, as `settle`."""
        self._segment.file.sync()
        self.settle()  # after it: only this thread closes segments

    def vanish(self) -> None:
        """Let others write, as the death of this process would: nothing is written any more, nor waited for."""
        self._lock.close()

    def close(self) -> None:
        """Wait until the disk has it all; then others may write."""
        try:
            self.settle()
            self._segment.close()
        finally:
            self._lock.close()
