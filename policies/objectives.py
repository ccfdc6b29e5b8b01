"""What the learner minimises, as functions of the learned tokens' log-probabilities.

Invariants:
- a loss is a sum of `weight * token loss`; the weights of a whole optimiser step are fixed before its first pass and
  sum to one, so the losses of the passes, and their gradients, sum to those of the step however it is cut (means per
  pass would not);
- only learned tokens get here: prompt and tool tokens have no log-probability, no loss and no share in a denominator;
- a pass holds whole sequences, so an objective may also form sequence-level quantities.

An objective is a function that gives each token's loss; `token_weights` and `weighted_sum` serve all of them.
Sources: rStar2-Agent (arXiv 2508.20722) eq. 6; DAPO (arXiv 2503.14476) for the token-level denominator and the raised
upper clip; truncated importance sampling as in "Your efficient RL framework secretly brings you off-policy RL training"
(Yao et al. 2025).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from policies.options import ObjectiveOptions


def token_weights(
    learned_tokens: Sequence[int], groups: Sequence[int], denominator: Literal["batch_tokens", "group_tokens"]
) -> list[float]:
    """The weight of each token of each sequence, for all sequences of an optimiser step together.

    Args:
        learned_tokens: `[S]`, learned tokens per sequence.
        groups: `[S]`, the group of each sequence.
        denominator: `batch_tokens`: 1 / all learned tokens. `group_tokens`: 1 / (groups * learned tokens of the group),
            which is eq. 6 in each group and the mean over groups. Groups in which nothing is learned do not count.

    Returns:
        `[S]`; weights times learned tokens sum to one (if anything is learned).
    """
    if denominator == "batch_tokens":
        total = sum(learned_tokens)
        return [1.0 / total if count else 0.0 for count in learned_tokens]
    totals: Counter[int] = Counter()
    for group, count in zip(groups, learned_tokens, strict=True):
        totals[group] += count
    taking_part = sum(total > 0 for total in totals.values())
    return [
        1.0 / (taking_part * totals[group]) if count else 0.0
        for group, count in zip(groups, learned_tokens, strict=True)
    ]


def weighted_sum(token_losses: Tensor, weights: Tensor) -> Tensor:
    """The loss of one pass: a scalar. `[n]`, `[n]`."""
    return (token_losses * weights).sum()


class SampledTokens(NamedTuple):
    """The learned tokens of one pass, as they were sampled. All `[n]`, without gradients."""

    engine_logprobs: Tensor
    """By the engine, when it sampled them."""
    advantages: Tensor
    """Of each token's sequence."""
    old_logprobs: Tensor | None = None
    """By the learner, before the first update on this batch. None at the first: then they are the current ones."""


@dataclass(slots=True)
class Diagnostics:
    """Sums and maxima over tokens; those of several passes combine to those of the step (`merge`)."""

    tokens: int = 0
    clipped: int = 0
    """Tokens whose gradient the clip has cut off."""
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    mismatch_sum: float = 0.0
    """Of |learner's minus engine's log-probability|."""
    mismatch_max: float = 0.0
    divergence_sum: float = 0.0
    """Of k3 (Schulman 2020): `exp(d) - 1 - d`, d = learner's - engine's; its mean estimates KL(engine || learner)."""
    capped: int = 0
    """Tokens whose importance weight the cap has cut."""

    def merge(self, other: Diagnostics) -> None:
        """Take in the figures of another pass."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, max(mine, theirs) if field.name.endswith("_max") else mine + theirs)

    def metrics(self) -> dict[str, float]:
        """Figures per token, under the names of the run's metrics."""
        if not self.tokens:
            return {}
        return {
            "clip_share": self.clipped / self.tokens,
            "ratio_mean": self.ratio_sum / self.tokens,
            "ratio_max": self.ratio_max,
            "engine_mismatch_mean_abs": self.mismatch_sum / self.tokens,
            "engine_mismatch_max": self.mismatch_max,
            "mismatch_kl": self.divergence_sum / self.tokens,
            "importance_capped_share": self.capped / self.tokens,
        }


def imitation_losses(logprobs: Tensor) -> Tensor:
    """Cross-entropy, per token `[n]` (nats): fine-tuning imitates what it is shown."""
    return -logprobs


def clipped_losses(logprobs: Tensor, sampled: SampledTokens, options: ObjectiveOptions) -> tuple[Tensor, Diagnostics]:
    """Eq. 6 per token: `-w * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`.

    Without `importance_cap`, `ratio = exp(current - engine)` and `w = 1`: the engine's log-probabilities stand for the
    old policy's. With it, `ratio = exp(current - old)` over the learner's own log-probabilities, and the gap between
    learner and engine goes into `w = min(exp(old - engine), importance_cap)`, a constant. On the first update of a
    batch `old` is `current` without its gradient, so the ratio is 1 in value.

    Args:
        logprobs: `[n]`, current, with gradient, at the temperature at which the engine sampled.

    Returns:
        Token losses `[n]` and the pass's diagnostics.
    """
    engine, advantages = sampled.engine_logprobs, sampled.advantages
    if options.importance_cap is None:
        old, importance = engine, None
    else:
        old = logprobs.detach() if sampled.old_logprobs is None else sampled.old_logprobs
        importance = (old - engine).exp()
    ratio = (logprobs - old).exp()
    clipped_ratio = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high)
    losses = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if importance is not None and options.importance_cap is not None:
        losses = losses * importance.clamp(max=options.importance_cap)
    return losses, _diagnose(logprobs.detach(), ratio.detach(), importance, sampled, options)


def _diagnose(
    logprobs: Tensor, ratio: Tensor, importance: Tensor | None, sampled: SampledTokens, options: ObjectiveOptions
) -> Diagnostics:
    if not len(logprobs):
        return Diagnostics()
    advantages = sampled.advantages
    cut = ((advantages > 0) & (ratio > 1.0 + options.clip_high)) | ((advantages < 0) & (ratio < 1.0 - options.clip_low))
    # In float64: k3 of tiny gaps is a difference of nearly equal numbers.
    gap = logprobs.double() - sampled.engine_logprobs.double()
    return Diagnostics(
        tokens=len(logprobs),
        clipped=int(cut.sum()),
        ratio_sum=float(ratio.double().sum()),
        ratio_max=float(ratio.max()),
        mismatch_sum=float(gap.abs().sum()),
        mismatch_max=float(gap.abs().max()),
        divergence_sum=float((gap.expm1() - gap).sum()),
        capped=0 if importance is None else int((importance > (options.importance_cap or 0.0)).sum()),
    )
