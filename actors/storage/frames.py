"""Checksummed frames in an append-only file: what the archive's segments and indices are made of.

On disk a file is an 8-byte magic, then frames `length:u32 checksum:u32 payload`, little-endian; the payload is one
zstd frame of msgpack, the checksum is the CRC-32 of the payload as written (docs/archive-format.md).

Invariants:
- a frame is written by one call to the operating system, and a write that fails leaves no part of it behind;
- reading never raises for what a file holds: each byte belongs to the magic, to a whole frame, to a stretch that is
  named as damaged, or to a torn tail;
- a tail is torn only if it is a beginning of what was to be written (or zeros, which a power failure leaves); all
  else that fails is damage. A flipped bit in a length is damage too: the zstd frame behind it knows its own end.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import zstandard
from pydantic import BaseModel

FRAME = struct.Struct("<II")
MAGIC_BYTES = 8
_ZSTD_MAGIC = zstandard.FRAME_HEADER
COMPRESSION_LEVEL = 3


class ArchiveError(ValueError):
    """An archive that can't be used as asked; the text says where and what would help."""


class ArchiveCorrupt(ArchiveError):
    """Bytes that are not what was written, a file of another kind, or a schema that this version can't read."""


class ArchiveInUse(ArchiveError):
    """Another writer has the archive open."""


class Frame(NamedTuple):
    """A whole frame, its checksum tested."""

    offset: int
    end: int
    checksum: int
    payload: bytes
    """Compressed, as on disk."""


class Damaged(NamedTuple):
    """Bytes `offset` to `end` of a file are not what was written."""

    offset: int
    end: int
    what: str


class Torn(NamedTuple):
    """The file ends within a frame: its writer died there, or is just writing it."""

    offset: int
    end: int


class FrameFile:
    """Appends records to a new file. Raises `FileExistsError` if there is one, `OSError` as the file system does."""

    def __init__(self, path: Path, magic: bytes) -> None:
        assert len(magic) == MAGIC_BYTES
        self.path, self.size = path, 0
        self._packer = msgpack.Packer(default=_fields)  # one for all: each has a buffer of 256 KiB
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        self._file = path.open("xb", buffering=0)  # unbuffered: what `append` returned from outlives the process
        self._write(magic)

    def pack(self, record: Any) -> bytes:
        """The payload of a record's frame; the same record has the same payload."""
        packed = self._packer.pack(record)
        assert packed is not None, "msgpack packs every record"
        return self._compressor.compress(packed)

    def append(self, payload: bytes) -> tuple[int, int]:
        """Add the frame of a payload; returns its offset and its end.

        Raises `OSError` (a full disk, say); the file then still ends with its last whole frame, and may be tried again.
        """
        offset = self.size
        self._write(FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        return offset, self.size

    def sync(self) -> None:
        """Wait until the disk has it all."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.size)
            self._file.seek(self.size)
            raise
        self.size += len(data)


def _fields(value: Any) -> Any:
    assert isinstance(value, BaseModel), f"a record holds a {type(value).__name__}"
    return value.__dict__


def decode(frame: Frame) -> Any:
    """The record of a frame."""
    return msgpack.unpackb(zstandard.ZstdDecompressor().decompress(frame.payload))


def scan(data: bytes, magic: bytes, base: int = 0) -> Iterator[Frame | Damaged | Torn]:
    """Everything in `data`, in order: a file's bytes from offset `base` on, where a frame begins (0: the whole file).

    Offsets are those in the file.
    """
    position = 0
    if base == 0:
        if magic.startswith(data):  # cut within the magic or right after it, where the header was to come
            yield Torn(0, len(data))
            return
        if data[:MAGIC_BYTES] != magic:
            yield Damaged(0, min(MAGIC_BYTES, len(data)), f"the file does not begin with {magic.decode()}")
        position = MAGIC_BYTES
    while position < len(data):
        frame = frame_at(data, position)
        if frame is not None:
            yield frame._replace(offset=base + frame.offset, end=base + frame.end)
            position = frame.end
            continue
        following = _next_frame(data, position)
        if following is None and _is_torn(data, position):
            yield Torn(base + position, base + len(data))
            return
        end = len(data) if following is None else following
        yield Damaged(base + position, base + end, "the frame fails its checksum")
        position = end


def frame_at(data: bytes, offset: int) -> Frame | None:
    """The frame that begins at `offset`; None if there is no whole one, or its checksum fails."""
    if offset + FRAME.size > len(data):
        return None
    length, checksum = FRAME.unpack_from(data, offset)
    begin = offset + FRAME.size
    if begin + length > len(data):
        return None
    payload = data[begin : begin + length]
    if zlib.crc32(payload) != checksum or not payload.startswith(_ZSTD_MAGIC):
        return None
    return Frame(offset, begin + length, checksum, payload)


def _next_frame(data: bytes, damaged: int) -> int | None:
    """Where the first whole frame after the damaged one begins. Chance can't forge it: its checksum holds."""
    found = data.find(_ZSTD_MAGIC, damaged + FRAME.size + 1)
    while found >= 0:
        if frame_at(data, found - FRAME.size) is not None:
            return found - FRAME.size
        found = data.find(_ZSTD_MAGIC, found + 1)
    return None


def _is_torn(data: bytes, offset: int) -> bool:
    """Whether what follows `offset`, the file's last frame, was cut off; otherwise it was changed."""
    rest = data[offset:]
    if len(rest) < FRAME.size or not any(rest):
        return True
    length, _ = FRAME.unpack_from(rest)
    if FRAME.size + length <= len(rest):
        return False
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        decompressor.decompress(rest[FRAME.size :])
    except zstandard.ZstdError:
        return True
    return not decompressor.eof  # if the payload is whole, the length is wrong
