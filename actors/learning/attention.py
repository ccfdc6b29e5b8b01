"""Causal attention within the sequences of a packed row, for models of the transformers library.

Invariants:
- a token attends to its own sequence up to itself and to nothing else;
- only attention ever sees padding: linears, norms and losses run on the packed row;
- what this can't compute (sliding windows shorter than a sequence, soft caps, sinks, caches) is refused, never
  approximated.

Sequences of similar length are neighbours in a row (`policies.packing`). A run of them is padded to the longest as one
block `[N, heads, L, d]` and goes through one causal scaled-dot-product call: padding sits behind the real keys, so the
causal mask hides it. Sequences of equal length need no copies at all. (With a call for each of 160 sequences of 100
tokens in a row, a step of a model with a million parameters took twice as long on a CPU.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "greenroom_packed"
"""Name in transformers' registry; pass it as `attn_implementation`."""

LARGEST_PADDING = 0.2
"""A block takes in shorter sequences down to this share below its longest: fewer calls against wasted work."""


class Block(NamedTuple):
    """Neighbouring sequences of a row, attended to in one call."""

    start: int
    """First token in the row."""
    stop: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]: nobody counts in a block
    """N sequences."""
    length: int
    """L tokens, the longest of them."""
    padded: Tensor | None
    """int64 `[N * L]`: which token of the block is at each place of the padded one (0 at padding); None without any."""
    real: Tensor | None
    """int64 `[stop - start]`: the inverse, where each token of the block is in the padded one."""


def plan_blocks(boundaries: np.ndarray, device: torch.device | str = "cpu") -> tuple[Block, ...]:
    """Cut a row into blocks. `boundaries`: `[S + 1]`, lengths falling."""
    lengths = np.diff(boundaries)
    blocks: list[Block] = []
    first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        stop = first
        while stop < len(lengths) and lengths[stop] >= longest * (1.0 - LARGEST_PADDING):
            assert lengths[stop] <= longest, "sequences of a row must be ordered by falling length"
            stop += 1
        blocks.append(_block(boundaries[first : stop + 1], longest, device))
        first = stop
    return tuple(blocks)


def _block(boundaries: np.ndarray, longest: int, device: torch.device | str) -> Block:
    lengths = np.diff(boundaries)
    start, stop, count = int(boundaries[0]), int(boundaries[-1]), len(lengths)
    if (lengths == longest).all():
        return Block(start, stop, count, longest, None, None)
    places = np.arange(longest)
    is_real = places[None] < lengths[:, None]
    padded = np.where(is_real, (boundaries[:-1] - start)[:, None] + places[None], 0).reshape(-1)
    real = np.flatnonzero(is_real.reshape(-1))
    return Block(start, stop, count, longest, torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device))


class _Pad(torch.autograd.Function):
    """`rows[padded]`. Its backward is a gather too: no gradient reaches padding, since no real token attends to it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, padded: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(real)
        return rows.index_select(0, padded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (real,) = ctx.saved_tensors
        return gradient.index_select(0, real), None, None


def _as_blocks(states: Tensor, blocks: tuple[Block, ...]) -> list[Tensor]:
    """`[T, heads, d]` of a whole row -> `[N, heads, L, d]` of each block.

    By one split: the gradient of a slice would be as large as the row, for each block.
    """
    parts = states.split([block.stop - block.start for block in blocks])
    return [_as_block(part, block) for part, block in zip(parts, blocks, strict=True)]


def _as_block(rows: Tensor, block: Block) -> Tensor:
    heads, width = rows.shape[1:]
    if block.padded is not None and block.real is not None:
        flat = _Pad.apply(rows.reshape(len(rows), -1), block.padded, block.real)
        assert isinstance(flat, Tensor)
        rows = flat
    return rows.reshape(block.count, block.length, heads, width).transpose(1, 2)


def _from_block(states: Tensor, block: Block) -> Tensor:
    """`[N, heads, L, d]` -> `[stop - start, heads, d]`."""
    rows = states.transpose(1, 2).reshape(block.count * block.length, *states.shape[1::2])
    return rows if block.real is None else rows.index_select(0, block.real)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: tuple[Block, ...] | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """transformers' attention call: `[1, heads, T, d]` -> `[1, T, heads, d]`.

    `packed` comes through the model's keyword arguments; without it the row is one sequence.
    Raises `ValueError` for what packed rows can't have.
    """
    heads, length = query.shape[1], query.shape[2]
    if query.shape[0] != 1 or attention_mask is not None or key.shape[2] != length:
        raise ValueError(
            f"attention {ATTENTION!r} takes one packed row without mask or cache; for generation or padded batches "
            "load the model with attn_implementation='sdpa'"
        )
    blocks = packed or (Block(0, length, 1, length, None, None),)
    window = extras.get("sliding_window")
    if window is not None and blocks[0].length > window:
        raise ValueError(
            f"a sequence of {blocks[0].length} tokens exceeds the model's sliding window of {window}, "
            "which packed attention lacks; learn from shorter sequences"
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if extras.get(name) is not None:
            raise ValueError(f"the model's attention uses {name!r}, which packed attention lacks; choose another model")

    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if key.shape[1] != heads:
        # Grouped-query attention: CPU kernels want as many key heads as query heads.
        key, value = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (key, value))
    parts = zip(*(_as_blocks(states, blocks) for states in (query, key, value)), blocks, strict=True)
    outputs = [
        _from_block(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling), block)
        for q, k, v, block in parts
    ]
    return (torch.cat(outputs) if len(outputs) > 1 else outputs[0])[None], None


AttentionInterface.register(ATTENTION, packed_attention)
