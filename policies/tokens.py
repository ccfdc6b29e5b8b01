"""Token ids and log-probabilities as they are stored and sent: packed little-endian 32-bit bytes.

Lists of Python integers cost a hundred times as much to encode. The packed form is a plain `bytes`
object, so records that hold it stay hashable, comparable and cheap to send.

A simulator has no ids. There, `CountedTokens` stand in for packed and for unpacked ids alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from policies.scripted import CountedTokens

type PackedIds = bytes | CountedTokens
"""Ids as they are stored and sent."""
type Ids = list[int] | CountedTokens
"""Ids as an engine takes and gives them."""


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """Token ids `[L]` -> `4 L` bytes (int32, little-endian)."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The inverse of `pack_ids`."""
    return np.frombuffer(packed, dtype="<i4").tolist()


def from_engine(ids: Ids) -> PackedIds:
    """Ids as they are sent, from an engine's."""
    return ids if isinstance(ids, CountedTokens) else pack_ids(ids)


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
    assert len(packed) % 4 == 0, f"{len(packed)} bytes are not a whole number of 32-bit items"
    return len(packed) // 4


def concatenate(parts: Iterable[bytes]) -> bytes:
    """Packed sequences, one after another."""
    return b"".join(parts)


def joined(parts: Sequence[PackedIds]) -> PackedIds:
    """The spans of one sequence, one after another; at least one."""
    if isinstance(parts[0], CountedTokens):
        assert isinstance(parts[-1], CountedTokens), "a sequence is counted as a whole or not at all"
        return parts[-1]._replace(skip=parts[0].skip)
    return concatenate(part for part in parts if isinstance(part, bytes))


def after(packed: PackedIds, position: int) -> PackedIds:
    """What comes after the first `position` tokens."""
    if isinstance(packed, CountedTokens):
        return packed._replace(skip=packed.skip + position)
    return packed[4 * position :]


def continued(history: Ids, known: int, added: PackedIds) -> Ids:
    """The first `known` tokens of a history, with what comes after them; as an engine takes ids."""
    if isinstance(added, CountedTokens):
        assert added.skip == known, f"{added} does not continue a history at token {known}"
        return added._replace(skip=0)
    assert isinstance(history, list), "a history is counted as a whole or not at all"
    return history[:known] + unpack_ids(added)


def extended(history: Ids, sampled: Ids) -> Ids:
    """A history with what an engine sampled after it."""
    if isinstance(sampled, CountedTokens):
        return sampled._replace(skip=0)
    assert isinstance(history, list), "a history is counted as a whole or not at all"
    return history + sampled


def length(ids: Ids) -> int:
    """How many tokens an engine was given."""
    return ids.length if isinstance(ids, CountedTokens) else len(ids)
