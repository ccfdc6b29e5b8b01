"""How long one engine step takes.

    seconds = base + sequence * B + context_token * K + prefill_token * p + prefill_pair * x

with B decoding sequences, K tokens of context that they attend to, p prompt tokens computed in the step, and x the
(computed token, context token) pairs among these: a chunk of n tokens after c others has n * c + n * (n + 1) / 2.
Decode attention is linear in B * context (LLMServingSim 2.0 measures R^2 = 1.0000), prefill attention in the pairs.

Invariants: more work never takes less time; the sum over m steps of a growing batch equals the m steps one by one.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, NamedTuple

from pydantic import Field

from policies.options import Options

Seconds = Annotated[float, Field(ge=0)]


class StepWork(NamedTuple):
    """What `steps` equal steps compute. In each, every decoding sequence's context grows by one token."""

    steps: int
    decoding: int
    """Sequences that decode one token in each step."""
    context_tokens: int
    """Tokens that the decoding sequences attend to in the first of the steps, together."""
    prefill_tokens: int = 0
    """Only single steps prefill."""
    prefill_pairs: int = 0


class StepCost(Options):
    """Coefficients, in seconds.

    The defaults are ASSUMPTIONS, not measurements: a dense 14B model (160 KiB of KV per token) on one data-centre GPU
    that reads its weights in about 8 ms and some 3.7 TB/s of KV. `greenroom calibrate` fits them to an engine.
    """

    base: Seconds = 8e-3
    """A step, whatever it holds."""
    sequence: Seconds = 15e-6
    """Each sequence that decodes."""
    context_token: Seconds = 44e-9
    """Each token of KV that decoding reads."""
    prefill_token: Seconds = 57e-6
    """Each prompt token computed."""
    prefill_pair: Seconds = 0.0
    """Each pair of a prompt token and a token that it attends to."""

    def seconds(self, work: StepWork, steps: int | None = None) -> float:
        """Time of the first `steps` steps of `work` (default: all of them)."""
        base, sequence, context_token, prefill_token, prefill_pair = self._coefficients
        m, decoding, context_tokens, prefill_tokens, prefill_pairs = work
        if steps is not None:
            m = steps
        growth = decoding * (m * (m - 1) // 2)
        return (
            m * (base + sequence * decoding + prefill_token * prefill_tokens)
            + context_token * (m * context_tokens + growth)
            + prefill_pair * m * prefill_pairs
        )

    def steps_begun_by(self, work: StepWork, seconds: float) -> int:
        """Steps of `work` that have begun when `seconds` have passed: at least 1, at most all of them."""
        low, high = 1, work.steps
        if high == 1:
            return 1
        near = self._steps_in(work, seconds)
        guesses = [near, near + 1]
        while low < high:
            middle = guesses.pop() if guesses else (low + high) // 2
            if not low <= middle < high:
                continue
            if self.seconds(work, middle) > seconds:
                high = middle
            else:
                low = middle + 1
        return low

    def _steps_in(self, work: StepWork, seconds: float) -> int:
        """Whole steps of `work` in `seconds`, give or take one: `seconds` is a quadratic in the steps."""
        square = self.context_token * work.decoding / 2
        linear = self.seconds(work, 1) - square
        root = math.sqrt(linear * linear + 4 * square * max(0.0, seconds))
        return int(min(2 * seconds / (linear + root), work.steps)) if linear + root > 0 else work.steps

    @cached_property
    def _coefficients(self) -> tuple[float, float, float, float, float]:
        """All at once: a field of a model takes several times as long to read as that of a plain object."""
        return self.base, self.sequence, self.context_token, self.prefill_token, self.prefill_pair
