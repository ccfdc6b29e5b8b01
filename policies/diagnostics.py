"""What there is to say of a step's learned tokens: ratios, clips, and the gap between engine and learner.

Invariant: figures are sums and extremes over tokens, so those of several passes combine to those of the step
(quantiles would not; the tails are therefore shares beyond fixed bounds).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from policies.options import ObjectiveOptions

TAIL = 2.0
"""A ratio above it, or below its inverse, belongs to the tail."""


@dataclass(slots=True)
class Diagnostics:
    """Of a number of tokens. Names end in `_max` and `_min` for extremes; all others are sums."""

    tokens: int = 0
    clipped_high: int = 0
    """Tokens whose ratio the upper clip has held: with advantage above zero, but for `clipped_weight`."""
    clipped_low: int = 0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    ratio_min: float = float("inf")
    ratio_tail: int = 0
    mismatch_sum: float = 0.0
    """Of |learner's minus engine's log-probability|."""
    mismatch_max: float = 0.0
    mismatch_tail: int = 0
    """Tokens whose probability by learner and engine differs by more than the factor `TAIL`."""
    divergence_sum: float = 0.0
    """Of k3 (Schulman 2020): `exp(d) - 1 - d`, d = learner's - engine's; its mean estimates KL(engine || learner)."""
    capped: int = 0
    """Tokens whose importance weight the cap has cut."""
    masked: int = 0
    """Tokens whose importance weight was outside the band."""
    reference_divergence_sum: float = 0.0
    """Of k3 between the current weights and the reference's."""

    def merge(self, other: Diagnostics) -> None:
        """Take in the figures of another pass."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            kind = field.name.rpartition("_")[2]
            merged = max(mine, theirs) if kind == "max" else min(mine, theirs) if kind == "min" else mine + theirs
            setattr(self, field.name, merged)

    def metrics(self, options: ObjectiveOptions) -> dict[str, float]:
        """Figures per token, under the names of the run's metrics; those of parts that are off are left out."""
        if not self.tokens:
            return {}
        figures = {
            "clip_share": (self.clipped_high + self.clipped_low) / self.tokens,
            "clip_high_share": self.clipped_high / self.tokens,
            "clip_low_share": self.clipped_low / self.tokens,
            "ratio_mean": self.ratio_sum / self.tokens,
            "ratio_max": self.ratio_max,
            "ratio_min": self.ratio_min,
            "ratio_tail_share": self.ratio_tail / self.tokens,
            "engine_mismatch_mean_abs": self.mismatch_sum / self.tokens,
            "engine_mismatch_max": self.mismatch_max,
            "engine_mismatch_tail_share": self.mismatch_tail / self.tokens,
            "mismatch_kl": self.divergence_sum / self.tokens,
            "importance_capped_share": self.capped / self.tokens,
        }
        if options.importance_band is not None:
            figures["importance_masked_share"] = self.masked / self.tokens
        if options.kl_weight:
            figures["reference_kl"] = self.reference_divergence_sum / self.tokens
        return figures


def diagnose(
    *,
    logprobs: Tensor,
    ratio: Tensor,
    importance: Tensor | None,
    reference_divergence: Tensor | None,
    engine_logprobs: Tensor,
    advantages: Tensor,
    options: ObjectiveOptions,
) -> Diagnostics:
    """The figures of one pass. All tensors `[n]` and without gradients."""
    if not len(logprobs):
        return Diagnostics()
    high, low = ratio > 1.0 + options.clip_high, ratio < 1.0 - options.clip_low
    if options.surrogate == "pessimistic":
        high, low = high & (advantages > 0), low & (advantages < 0)
    # In float64: k3 of tiny gaps is a difference of nearly equal numbers.
    gap = logprobs.double() - engine_logprobs.double()
    figures = Diagnostics(
        tokens=len(logprobs),
        clipped_high=int(high.sum()),
        clipped_low=int(low.sum()),
        ratio_sum=float(ratio.double().sum()),
        ratio_max=float(ratio.max()),
        ratio_min=float(ratio.min()),
        ratio_tail=_tail(ratio),
        mismatch_sum=float(gap.abs().sum()),
        mismatch_max=float(gap.abs().max()),
        mismatch_tail=_tail(gap.exp()),
        divergence_sum=float((gap.expm1() - gap).sum()),
        reference_divergence_sum=0.0 if reference_divergence is None else float(reference_divergence.double().sum()),
    )
    if importance is not None and options.importance_cap is not None:
        figures.capped = int((importance > options.importance_cap).sum())
    if importance is not None and options.importance_band is not None:
        band_low, band_high = options.importance_band
        figures.masked = int(((importance < band_low) | (importance > band_high)).sum())
    return figures


def _tail(ratio: Tensor) -> int:
    return int(((ratio > TAIL) | (ratio < 1.0 / TAIL)).sum())
