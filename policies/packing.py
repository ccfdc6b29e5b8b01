"""Packing: sequences laid end to end in rows, so that no pass of the learner computes padding.

Invariants:
- every sequence is in exactly one row, whole; no row holds more than `row_tokens` tokens;
- within a row sequences are ordered by length, longest first, so that equal lengths are neighbours (attention uses it);
- a token's log-probability is read at the position before it *in the same sequence*; a row says at which positions
  those are, so nothing ever predicts across a boundary;
- same sequences, same rows: packing is deterministic.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies import tokens
from policies.batch import TrainingSequence


class PackedRow(NamedTuple):
    """`S` sequences of together `T` tokens, of which `n` are learned."""

    sequences: np.ndarray
    """int64 `[S]`: which sequences, as indices into what was packed."""
    boundaries: np.ndarray
    """int64 `[S + 1]`: the row's sequence `i` is `boundaries[i]:boundaries[i + 1]` (`cu_seqlens` of varlen kernels)."""
    ids: np.ndarray
    """int64 `[T]`."""
    positions: np.ndarray
    """int64 `[T]`: from 0 in each sequence."""
    predictors: np.ndarray
    """int64 `[n]`: where in the row the hidden state is that predicts each learned token."""
    targets: np.ndarray
    """int64 `[n]`: the learned tokens' ids."""
    owners: np.ndarray
    """int64 `[n]`: the sequence of each learned token, as an index into what was packed."""
    logprobs: np.ndarray
    """float32 `[n]`: as the engine sampled the learned tokens; 0 where the sequence has none."""


def assign_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Best-fit decreasing: each sequence, longest first, goes to the fullest row that still has room for it.

    Returns rows of indices, each row by falling length.
    Raises `ValueError` if a sequence is longer than a row.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if order and lengths[order[0]] > row_tokens:
        raise ValueError(
            f"a sequence of {lengths[order[0]]} tokens does not fit a micro batch of {row_tokens}; "
            "raise micro_batch_tokens to at least the longest sequence"
        )
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    """(tokens free, row), ascending."""
    for index in order:
        at = bisect.bisect_left(room, (lengths[index], -1))
        if at < len(room):
            free, row = room.pop(at)
        else:
            free, row = row_tokens, len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(room, (free - lengths[index], row))
    return rows


def pack(sequences: Sequence[TrainingSequence], row_tokens: int) -> list[PackedRow]:
    """Pack sequences into rows of at most `row_tokens` tokens.

    Raises `ValueError` if a sequence is longer than a row.
    """
    rows = assign_rows([sequence.length for sequence in sequences], row_tokens)
    return [_row(sequences, members) for members in rows]


def _row(sequences: Sequence[TrainingSequence], members: list[int]) -> PackedRow:
    chosen = [sequences[index] for index in members]
    lengths = np.array([sequence.length for sequence in chosen], dtype=np.int64)
    boundaries = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.frombuffer(tokens.concatenate(s.ids for s in chosen), dtype="<i4").astype(np.int64)
    learned = np.flatnonzero(np.frombuffer(b"".join(s.learned for s in chosen), dtype=np.uint8))
    logprobs = tokens.unpack_floats(b"".join(s.logprobs or bytes(4 * s.length) for s in chosen))
    return PackedRow(
        sequences=np.array(members, dtype=np.int64),
        boundaries=boundaries,
        ids=ids,
        positions=np.arange(len(ids)) - np.repeat(boundaries[:-1], lengths),
        # A learned token is never the first of its sequence (`TrainingSequence` checks): the one before is in it too.
        predictors=learned - 1,
        targets=ids[learned],
        owners=np.repeat(np.array(members, dtype=np.int64), lengths)[learned],
        logprobs=logprobs[learned],
    )


def idle_row() -> PackedRow:
    """A row of one token of which nothing is learned."""
    none = np.zeros(0, dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    return PackedRow(
        sequences=zero,
        boundaries=np.array([0, 1]),
        ids=zero,
        positions=zero,
        predictors=none,
        targets=none,
        owners=none,
        logprobs=np.zeros(0, dtype=np.float32),
    )
