"""Checksummed frames in an append-only file: what the archive's segments and indices are made of.

On disk a file is an 8-byte magic, then frames `length:u32 checksum:u32 payload`, little-endian; the payload is one
zstd frame of msgpack, the checksum is the CRC-32 of the payload as written (docs/archive-format.md).

Invariants:
- a frame is written by one call to the operating system, and a write that fails leaves no part of it behind;
- reading never raises for what a file holds: each byte belongs to the magic, to a whole frame, to a stretch that is
  named as damaged, or to a torn tail;
- reading takes bounded memory and time, whatever a file claims: one larger than `MOST_FILE_BYTES` is not read; a record
  larger than `MOST_RECORD_BYTES`, which no writer writes, or has more than `MOST_ITEMS`, is none; and
  where what looks like frames overlaps again and again, the search for the next good one is given up;
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
MOST_FILE_BYTES = 1 << 30
"""Of a file, which is read as a whole; segments are finished at a sixteenth of this, indices are smaller."""
MOST_RECORD_BYTES = 256 << 20
"""Of a record before it is compressed."""
MOST_ITEMS = 1 << 18
"""In all lists and maps of a record together: Python's objects take up to seventy times the bytes of what is packed."""
_LONGEST = 1 << 16
"""Items of one list or map."""
_SEARCHED = 8
"""How often each byte of a file may be checksummed, on average, in the search for frames that follow damage."""
_CHUNK_BYTES = 1 << 10
"""Of a payload that are decompressed at once where only its end is looked for: they expand to 32 MiB at most."""


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
        """The payload of a record's frame; the same record has the same payload.

        Raises `ArchiveError` for one that is too large to be read again.
        """
        packed = self._packer.pack(record)
        assert packed is not None, "msgpack packs every record"
        if len(packed) > MOST_RECORD_BYTES:
            raise ArchiveError(
                f"a record of {len(packed)} bytes can't be stored: {MOST_RECORD_BYTES} is the most; "
                "lower limits.call.output_bytes, limits.max_turns or limits.max_tokens"
            )
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


class _Items:
    """Counts what lists and maps hold while they are unpacked."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, items: Any) -> Any:
        """Raises `ValueError` beyond `MOST_ITEMS`."""
        self._count += 1 + len(items)
        if self._count > MOST_ITEMS:
            raise ValueError(f"more than {MOST_ITEMS} items")
        return items


def decode(frame: Frame) -> Any:
    """The record of a frame. Raises `ArchiveCorrupt` if the payload, though its checksum holds, is none."""
    try:
        size = zstandard.frame_content_size(frame.payload)  # -1 if it does not say
        if size > MOST_RECORD_BYTES:
            raise ValueError(f"it claims to hold {size} bytes; {MOST_RECORD_BYTES} is the most")
        packed = zstandard.ZstdDecompressor().decompress(frame.payload, max_output_size=MOST_RECORD_BYTES)
        count = _Items().add
        return msgpack.unpackb(packed, object_hook=count, list_hook=count, max_array_len=_LONGEST, max_map_len=_LONGEST)
    except (zstandard.ZstdError, ValueError, TypeError) as error:  # msgpack's own are ValueErrors
        why = str(error) or type(error).__name__
        raise ArchiveCorrupt(f"the frame is whole, but holds no record: {why}") from error


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
    left = _SEARCHED * len(data)
    while position < len(data):
        frame = frame_at(data, position)
        if frame is not None:
            yield frame._replace(offset=base + frame.offset, end=base + frame.end)
            position = frame.end
            continue
        following, left = _next_frame(data, position, left)
        what = "the frame fails its checksum"
        if left < 0:
            what += ", and too much of what follows looks like overlapping frames"
        elif following is None and _is_torn(data, position):
            yield Torn(base + position, base + len(data))
            return
        end = len(data) if following is None else following
        yield Damaged(base + position, base + end, what)
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


def _next_frame(data: bytes, damaged: int, left: int) -> tuple[int | None, int]:
    """Where the first whole frame after the damaged one begins. Chance can't forge it: its checksum holds.

    Args:
        left: how many bytes may be checksummed.

    Returns the offset, None if there is no such frame, and how many bytes are left (below 0: the search was given up).
    """
    found = data.find(_ZSTD_MAGIC, damaged + FRAME.size + 1)
    while found >= 0:
        length, _ = FRAME.unpack_from(data, found - FRAME.size)
        if found + length <= len(data):
            left -= length
            if left < 0:
                return None, left
        if frame_at(data, found - FRAME.size) is not None:
            return found - FRAME.size, left
        found = data.find(_ZSTD_MAGIC, found + 1)
    return None, left


def _is_torn(data: bytes, offset: int) -> bool:
    """Whether what follows `offset`, the file's last frame, was cut off; otherwise it was changed."""
    rest = data[offset:]
    if len(rest) < FRAME.size or not any(rest):
        return True
    length, _ = FRAME.unpack_from(rest)
    if FRAME.size + length <= len(rest):
        return False
    decompressor, size = zstandard.ZstdDecompressor().decompressobj(), 0
    for begin in range(FRAME.size, len(rest), _CHUNK_BYTES):
        try:
            size += len(decompressor.decompress(rest[begin : begin + _CHUNK_BYTES]))
        except zstandard.ZstdError:
            return True
        if decompressor.eof or size > MOST_RECORD_BYTES:  # the payload is whole, or no writer's: the length is wrong
            return False
    return True
