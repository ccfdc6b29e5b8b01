"""The archive: trajectories in append-only segments of checksummed, compressed msgpack frames.

On disk a segment is an 8-byte magic, then frames: `length:u32 checksum:u32 payload`, little-endian; the payload
is zstd-compressed msgpack, the checksum is the CRC-32 of the payload as written. The first frame is a header
(schema version). A crash leaves at most one torn frame, at the end: readers stop before it.

Invariants:
- a trajectory is stored once: repeats by id are dropped;
- segments are only ever appended to; a new writer begins a new segment.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import zstandard
from pydantic import BaseModel

from actors.messages import ArchiveStatus, DescribeArchive, StoreTrajectory
from actors.system.actor import Actor, handles
from actors.system.message import Done
from policies.trajectory import SCHEMA_VERSION, Trajectory

MAGIC = b"GREENRM1"
_FRAME = struct.Struct("<II")
FLUSH_EVERY = 64
"""Frames between two flushes to the operating system."""


class ArchiveCorrupt(ValueError):
    """A file that is not an archive segment, or of a schema that this version can't read."""


class SegmentWriter:
    """Writes one segment. Raises `OSError` as the file system does (a full disk, say)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [int(path.stem.split("-")[1]) for path in folder.glob("segment-*.gra")]
        self.path = folder / f"segment-{max(taken, default=-1) + 1:05d}.gra"
        self._file: BinaryIO = self.path.open("xb")
        self._compressor = zstandard.ZstdCompressor(level=3)
        self._file.write(MAGIC)
        self.bytes_written = len(MAGIC)
        self._append({"schema": SCHEMA_VERSION})
        self.flush()

    def append(self, trajectory: Trajectory) -> None:
        """Add one trajectory."""
        self._append(dict(trajectory.__dict__))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _append(self, record: dict[str, Any]) -> None:
        packed = msgpack.packb(record, default=_fields)
        assert packed is not None, "msgpack packs every record"
        payload = self._compressor.compress(packed)
        self._file.write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        self.bytes_written += _FRAME.size + len(payload)


def _fields(value: Any) -> Any:
    assert isinstance(value, BaseModel), f"a trajectory holds a {type(value).__name__}"
    return value.__dict__


def read_archive(folder: Path) -> Iterator[Trajectory]:
    """All whole trajectories of an archive, in the order in which they were stored.

    Raises `ArchiveCorrupt` for a file that is no segment, or a checksum that fails before the last frame.
    """
    for path in sorted(folder.glob("segment-*.gra")):
        yield from _read_segment(path)


def _read_segment(path: Path) -> Iterator[Trajectory]:
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise ArchiveCorrupt(f"{path} does not begin as an archive segment does; was it written by something else?")
    decompressor = zstandard.ZstdDecompressor()
    position, header = len(MAGIC), True
    while position + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) < length:
            return  # torn by a crash
        if zlib.crc32(payload) != checksum:
            if position + _FRAME.size + length >= len(data):
                return
            raise ArchiveCorrupt(
                f"{path}: the frame at byte {position} fails its checksum; restore the file from a copy"
            )
        record = msgpack.unpackb(decompressor.decompress(payload))
        if header:
            if record["schema"] != SCHEMA_VERSION:
                raise ArchiveCorrupt(
                    f"{path} has schema {record['schema']}; this version reads schema {SCHEMA_VERSION}"
                )
            header = False
        else:
            yield Trajectory.model_validate(record)
        position += _FRAME.size + length


class ArchiveActor(Actor):
    """Owns the archive of a run."""

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)
        self._stored: set[str] = set()
        self._unflushed = 0

    async def start(self) -> None:
        self._writer = SegmentWriter(self._folder)

    async def stop(self) -> None:
        self._writer.close()

    @handles(StoreTrajectory)
    async def on_store(self, request: StoreTrajectory) -> Done:
        if request.trajectory.id not in self._stored:
            self._writer.append(request.trajectory)
            self._stored.add(request.trajectory.id)
            self._unflushed += 1
            if self._unflushed >= FLUSH_EVERY:
                self._writer.flush()
                self._unflushed = 0
        return Done()

    @handles(DescribeArchive)
    async def on_describe(self, _: DescribeArchive) -> ArchiveStatus:
        self._writer.flush()
        return ArchiveStatus(trajectories=len(self._stored), bytes_written=self._writer.bytes_written)
