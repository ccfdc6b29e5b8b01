"""What travels between mailboxes: frames of requests one way, batches of answers the other.

Invariants:
- a frame is one msgpack array, `[header, entry, ...]`; entries are packed when they are said, so that a message that
  can't be encoded fails its own sender and nobody else;
- a frame stays under `FRAME_BYTES` unless one entry alone is larger: Ray carries more than 100 KB through its object
  store, at a fifth of the rate;
- entry of a request: `[id, tag, fields]`, id 0 for those that want no answer; entry of an answer: `[id, tag, fields]`,
  `[id, None, text]` when the handler raised, `[id, False, text]` when that was `CannotGoOn`, `[id, "", text]` when the
  actor ends before it has answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgpack

from actors.system.message import Message, MessageError, plain

FRAME_BYTES = 88_000
"""Size that a frame of several entries does not exceed, bytes."""

NO_ANSWER = 0
"""Id of a message that is told, not asked."""

_packer = msgpack.Packer(default=plain)
_headers = msgpack.Packer()


class Header(NamedTuple):
    """Who says it, and where it stands in the sequence of its lane."""

    sender: str
    incarnation: int
    lane: str
    sequence: int
    floor: int
    """The sender has the acks of all frames below this one."""


def pack_message(id: int, message: Message) -> bytes:
    """One entry. Raises `MessageError` if the message has no tag or a field that msgpack can't carry."""
    tag = type(message).tag
    if not tag:
        raise MessageError(f"{type(message).__name__} has no tag; define it with `class Name(Message, tag=...)`")
    try:
        return _packer.pack((id, tag, message.__dict__))
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"{tag!r} can't be encoded: {error}") from error


def pack_failure(id: int, text: str) -> bytes:
    """The entry of an answer that is an exception."""
    return _packer.pack((id, None, text.encode(errors="backslashreplace").decode()))


def pack_reason(id: int, text: str) -> bytes:
    """The entry of an answer that is `CannotGoOn`."""
    return _packer.pack((id, False, text.encode(errors="backslashreplace").decode()))


def pack_farewell(id: int, text: str) -> bytes:
    """The entry of an answer that will never come."""
    return _packer.pack((id, "", text))


def pack_frame(header: Header, entries: list[bytes]) -> bytes:
    return b"".join((_headers.pack_array_header(len(entries) + 1), _headers.pack(header), *entries))


def unpack_frame(frame: bytes) -> tuple[Header, list[Any]]:
    header, *entries = msgpack.unpackb(frame, strict_map_key=False)
    return Header(*header), entries


def pack_answers(sequence: int, entries: list[bytes]) -> bytes:
    """A batch of answers; `sequence` orders those of a long poll, and is 0 for those that ride on an ack."""
    return b"".join((_headers.pack_array_header(len(entries) + 1), _headers.pack(sequence), *entries))


def unpack_answers(batch: bytes) -> tuple[int, list[Any]]:
    sequence, *entries = msgpack.unpackb(batch, strict_map_key=False)
    return sequence, entries


def fitting(entries: Iterable[bytes]) -> Iterator[bytes]:
    """The first entries that fit into one frame: at least one."""
    size = 0
    for entry in entries:
        size += len(entry)
        if size > FRAME_BYTES and size > len(entry):
            return
        yield entry
