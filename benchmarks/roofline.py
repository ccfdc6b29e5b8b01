"""What a training step would take on this machine if only its arithmetic and its reads of memory took time.

Two figures are measured: floating-point operations per second of a large matrix product, and bytes per second of a
large copy. A piece of work with F operations and B bytes takes at least `max(F / flops, B / bandwidth)`. Of a step are
counted

- prefill: each prompt once (rollouts of a group share it), 2 operations per weight and token;
- decoding: one pass per token of a completion over all sequences; it reads all weights and the keys and values so far;
- learning: forward and backward, 6 operations per weight and token, the output projection for learned tokens only,
  attention on top (half of the square: it is causal);
- the update: AdamW reads weight, gradient and two moments and writes three of them, all in float32.

Nothing is computed twice, no activation is written to memory, no thread waits: no implementation gets there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

SIDE = 2048
"""Of the square matrices whose product is timed."""
COPIED_BYTES = 1 << 28
ADAMW_BYTES = 28
"""Per weight: 4 read and 3 written, in float32."""


class Machine(NamedTuple):
    """What the cores can do, as measured."""

    flops_per_s: float
    """Of a product of two square matrices in the dtype asked for."""
    bytes_per_s: float
    """Read and written by a copy."""


class Transformer(NamedTuple):
    """What counts of a decoder-only model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """In the matrices of all layers."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        """In the output projection (which may be the embedding's)."""
        return self.hidden * self.vocabulary

    def attention_flops(self, queries: int, keys: int) -> float:
        """Scores and weighted sums of one sequence, forward."""
        return 4.0 * self.layers * self.heads * self.head_size * queries * keys


class Step(NamedTuple):
    """The work of one optimiser step."""

    prompts: Sequence[int]
    """Lengths in tokens."""
    group: int
    """Completions of each."""
    completion_tokens: int
    """Of each."""


class Roofline(NamedTuple):
    """The least seconds of a step, by part."""

    generation: float
    learning: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.generation + self.learning


def measure_machine(dtype: torch.dtype, threads: int, repeats: int = 7) -> Machine:
    """The best of several tries each; sets this process's number of threads."""
    torch.set_num_threads(threads)
    left, right = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    product = _best_seconds(lambda: left @ right, repeats)
    copied = _best_seconds(lambda: target.copy_(source), repeats)
    return Machine(2.0 * SIDE**3 / product, 2.0 * COPIED_BYTES / copied)


def _best_seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def roofline(model: Transformer, step: Step, machine: Machine, item_bytes: int) -> Roofline:
    """See the module. `item_bytes`: of one weight, key or value in the passes."""

    def seconds(flops: float, read: float) -> float:
        return max(flops / machine.flops_per_s, read / machine.bytes_per_s)

    weights = model.layer_weights + model.head_weights
    sequences = len(step.prompts) * step.group
    prefill = sum(
        2.0 * model.layer_weights * length + model.attention_flops(length, length) / 2 for length in step.prompts
    )
    generation = seconds(prefill, 0.0)
    for token in range(step.completion_tokens):
        keys = step.group * sum(length + token for length in step.prompts)
        read = weights + 2 * model.layers * model.kv_heads * model.head_size * keys
        generation += seconds(2.0 * weights * sequences + model.attention_flops(1, keys), float(item_bytes * read))

    lengths = [length + step.completion_tokens for length in step.prompts]
    forward = step.group * sum(
        2.0 * model.layer_weights * length
        + 2.0 * model.head_weights * step.completion_tokens
        + model.attention_flops(length, length) / 2
        for length in lengths
    )
    update = ADAMW_BYTES * weights / machine.bytes_per_s
    return Roofline(generation, seconds(3.0 * forward, 0.0) + update)
