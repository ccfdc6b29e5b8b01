"""Token ids and log-probabilities as they are stored and sent: packed little-endian 32-bit bytes.

Lists of Python integers cost a hundred times as much to encode. The packed form is a plain `bytes`
object, so records that hold it stay hashable, comparable and cheap to send.

A simulator has no ids: there, `CountedTokens` stand in for packed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from policies.scripted import CountedTokens

type PackedIds = bytes | CountedTokens
"""Ids as they are stored."""


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """Token ids `[L]` -> `4 L` bytes (int32, little-endian)."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(packed: PackedIds) -> list[int]:
    """The inverse of `pack_ids`."""
    assert isinstance(packed, bytes), f"{packed} are counted: nobody knows their ids"
    return np.frombuffer(packed, dtype="<i4").tolist()


def pack_floats(values: Sequence[float] | np.ndarray) -> bytes:
    """Floats `[L]` -> `4 L` bytes (float32, little-endian)."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(packed: bytes) -> np.ndarray:
    """The inverse of `pack_floats`: a read-only float32 array `[L]`."""
    return np.frombuffer(packed, dtype="<f4")


def count(packed: PackedIds) -> int:
    """How many 32-bit items `packed` holds, or how many tokens were counted."""
    if isinstance(packed, CountedTokens):
        return packed.length - packed.skip
    if not packed:
        return 0
    assert len(packed) % 4 == 0, f"{len(packed)} bytes are not a whole number of 32-bit items"
    return len(packed) // 4


def part(packed: PackedIds, begin: int, end: int) -> PackedIds:
    """Items `begin` to `end` of a packed sequence, the latter not among them."""
    if isinstance(packed, CountedTokens):
        return packed._replace(skip=packed.skip + begin, length=packed.skip + end)
    return packed[4 * begin : 4 * end]


def concatenate(parts: Iterable[PackedIds]) -> bytes:
    """Packed sequences, one after another."""
    return b"".join([part for part in parts if isinstance(part, bytes)])


def joined(parts: Sequence[PackedIds]) -> PackedIds:
    """The spans of one sequence, one after another; at least one."""
    if isinstance(parts[0], CountedTokens):
        assert isinstance(parts[-1], CountedTokens), "a sequence is counted as a whole or not at all"
        return parts[-1]._replace(skip=parts[0].skip)
    return concatenate(parts)
