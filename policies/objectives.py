"""What the learner minimises, as functions of the learned tokens' log-probabilities.

Invariants:
- a loss is a sum of `weight * token loss`; the weights of a whole optimiser step are fixed before its first pass, so
  the losses of the passes, and their gradients, sum to those of the step however it is cut (means per pass would not);
- only learned tokens get here: prompt and tool tokens have no log-probability, no loss and no share in a denominator;
- a pass holds whole sequences, so sequence-level ratios and weights are formed within it;
- one loss for every objective: a named objective is a choice of parts (`policies.options.OBJECTIVES`), and each part
  is written once;
- log-ratios are bounded before they are exponentiated, so that no product of zero and infinity gets into a gradient.

Sources: rStar2-Agent (arXiv 2508.20722) eq. 6; DAPO (arXiv 2503.14476) for the token-level denominator and the raised
upper clip; truncated importance sampling as in "Your efficient RL framework secretly brings you off-policy RL training"
(Yao et al. 2025); masked importance sampling over sequences as in "When speed kills stability" (Liu et al. 2025); the
divergence from a reference as in DeepSeekMath (arXiv 2402.03300), eq. 4. The named objectives' sources stand with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from policies.diagnostics import Diagnostics, diagnose
from policies.options import Denominator, ImportanceLevel, ObjectiveOptions, Ratio

LARGEST_LOG_RATIO = 20.0
"""Beyond it (a factor of 5e8) two log-probabilities of one token are a fault, not a lesson: no gradient follows."""


def token_weights(
    learned_tokens: Sequence[int], groups: Sequence[int], denominator: Denominator, constant_tokens: int | None = None
) -> list[float]:
    """The weight of each token of each sequence, for all sequences of an optimiser step together.

    Args:
        learned_tokens: `[S]`, learned tokens per sequence. Where nothing is learned, none counts: sequence or group.
        groups: `[S]`, the group of each sequence.
        denominator: `batch_tokens`: 1 / all learned tokens. `group_tokens`: 1 / (groups * learned tokens of the group),
            which is eq. 6 in each group and the mean over groups. `sequences`: 1 / (sequences * learned tokens of the
            sequence). `constant`: 1 / (sequences * constant_tokens).

    Returns:
        `[S]`. But for `constant`, weights times learned tokens sum to one (if anything is learned).

    Raises `ValueError` for `constant` without `constant_tokens`.
    """
    sequences = sum(count > 0 for count in learned_tokens)
    match denominator:
        case "batch_tokens":
            total = sum(learned_tokens)
            return [1.0 / total if count else 0.0 for count in learned_tokens]
        case "sequences":
            return [1.0 / (sequences * count) if count else 0.0 for count in learned_tokens]
        case "constant":
            if constant_tokens is None:
                raise ValueError(
                    "denominator is 'constant', but constant_tokens is not set; give the tokens to divide by"
                )
            return [1.0 / (sequences * constant_tokens) if count else 0.0 for count in learned_tokens]
        case "group_tokens":
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
    owners: Tensor
    """int64: each token's sequence, as any index from 0."""
    old_logprobs: Tensor | None = None
    """By the learner, before the first update on this batch. None at the first: then they are the current ones."""
    reference_logprobs: Tensor | None = None
    """By the weights that `kl_weight` holds on to."""


def imitation_losses(logprobs: Tensor) -> Tensor:
    """Cross-entropy, per token `[n]` (nats): fine-tuning imitates what it is shown."""
    return -logprobs


def policy_losses(
    logprobs: Tensor, sampled: SampledTokens, options: ObjectiveOptions, entropies: Tensor | None = None
) -> tuple[Tensor, Diagnostics]:
    """The objective per token, and what there is to say of it.

    Without a correction of the mismatch, the ratio is `exp(current - engine)`: the engine's log-probabilities stand for
    the old policy's. With one, it is `exp(current - old)` over the learner's own, and the gap between learner and
    engine, `exp(old - engine)`, becomes a weight without gradient, which is cut (`importance_cap`) or set to zero
    outside `importance_band`. On the first update of a batch `old` is `current` without its gradient, so the ratio is 1
    in value.

    Args:
        logprobs: `[n]`, current, with gradient, at the temperature at which the engine sampled.
        entropies: `[n]`, with gradient; needed for an entropy bonus.

    Returns:
        Token losses `[n]` and the pass's diagnostics.
    """
    old, importance = sampled.engine_logprobs, None
    if options.corrects_mismatch:
        old = logprobs.detach() if sampled.old_logprobs is None else sampled.old_logprobs
        importance = _level(_bounded(old - sampled.engine_logprobs), sampled.owners, options.importance_level).exp()
    levels: dict[Ratio, ImportanceLevel] = {"token": "token", "sequence": "geometric"}
    ratio = _level(_bounded(logprobs - old), sampled.owners, levels[options.ratio]).exp()
    losses = _surrogate(logprobs, ratio, sampled.advantages, options)
    if importance is not None:
        losses = losses * _importance_weights(importance, options)
    divergence = None
    if options.kl_weight:
        assert sampled.reference_logprobs is not None, "kl_weight is set, but nobody computed reference_logprobs"
        divergence = k3(sampled.reference_logprobs - logprobs)
        losses = losses + options.kl_weight * divergence
    if options.entropy_weight:
        assert entropies is not None, "entropy_weight is set, but nobody computed entropies"
        losses = losses - options.entropy_weight * entropies
    figures = diagnose(
        logprobs=logprobs.detach(),
        ratio=ratio.detach(),
        importance=importance,
        reference_divergence=None if divergence is None else divergence.detach(),
        engine_logprobs=sampled.engine_logprobs,
        advantages=sampled.advantages,
        options=options,
    )
    return losses, figures


def k3(log_ratio: Tensor) -> Tensor:
    """`exp(d) - 1 - d`, at least 0 (Schulman 2020): with d = log q - log p, its mean over p's tokens is KL(p || q)."""
    bounded = _bounded(log_ratio)
    return bounded.expm1() - bounded


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def _level(log_ratio: Tensor, owners: Tensor, level: ImportanceLevel) -> Tensor:
    """Log-ratios `[n]` of tokens, or of what each token's sequence has as a whole: product or geometric mean."""
    if level == "token" or not len(log_ratio):
        return log_ratio
    size = int(owners.max()) + 1
    sums = log_ratio.new_zeros(size).index_add(0, owners, log_ratio)
    match level:
        case "sequence":
            return _bounded(sums).index_select(0, owners)
        case "geometric":
            means = sums / torch.bincount(owners, minlength=size).clamp(min=1)
            return _bounded(means).index_select(0, owners)


def _surrogate(logprobs: Tensor, ratio: Tensor, advantages: Tensor, options: ObjectiveOptions) -> Tensor:
    clipped_ratio = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high)
    match options.surrogate:
        case "pessimistic":
            return -torch.minimum(ratio * advantages, clipped_ratio * advantages)
        case "clipped_weight":
            return -(clipped_ratio.detach() * advantages * logprobs)


def _importance_weights(importance: Tensor, options: ObjectiveOptions) -> Tensor:
    weights = importance if options.importance_cap is None else importance.clamp(max=options.importance_cap)
    if options.importance_band is None:
        return weights
    low, high = options.importance_band
    return torch.where((importance >= low) & (importance <= high), weights, torch.zeros_like(weights))
