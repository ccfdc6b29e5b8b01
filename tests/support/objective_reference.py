"""The objectives once more, in NumPy float64 and one sequence at a time: what the learner's loss is compared with.

Written from the papers' formulas; shares no code with `policies/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from policies.options import ObjectiveOptions


@dataclass
class Sampled:
    """The `n` learned tokens of one sequence."""

    current: np.ndarray
    engine: np.ndarray
    advantage: float
    group: int = 0
    old: np.ndarray | None = None
    reference: np.ndarray = field(default_factory=lambda: np.zeros(0))
    entropies: np.ndarray = field(default_factory=lambda: np.zeros(0))


def advantages(rewards: list[float], rule: str) -> np.ndarray:
    """Of one group."""
    values = np.array(rewards, dtype=np.float64)
    if (values == values[0]).all():
        return np.zeros(len(values))
    if rule == "standardised":
        return (values - values.mean()) / (values.std() + 1e-6)
    if rule == "centred":
        return values - values.mean()
    return np.array([value - np.delete(values, i).mean() for i, value in enumerate(values)])


def token_weight(sequences: list[Sampled], which: int, options: ObjectiveOptions) -> float:
    """What each token of a sequence weighs in the loss."""
    counts = [len(each.current) for each in sequences]
    n = counts[which]
    if options.denominator == "batch_tokens":
        return 1.0 / sum(counts)
    learned = sum(count > 0 for count in counts)
    if options.denominator == "sequences":
        return 1.0 / learned / n
    if options.denominator == "constant":
        assert options.constant_tokens
        return 1.0 / learned / options.constant_tokens
    groups = {each.group for each, count in zip(sequences, counts, strict=True) if count}
    mine = sum(count for each, count in zip(sequences, counts, strict=True) if each.group == sequences[which].group)
    return 1.0 / len(groups) / mine


def importance(sequence: Sampled, options: ObjectiveOptions) -> np.ndarray:
    """`[n]`: the constant that stands for the gap between engine and learner."""
    old = sequence.current if sequence.old is None else sequence.old
    gap = old - sequence.engine
    if options.importance_level == "sequence":
        gap = np.full_like(gap, gap.sum())
    elif options.importance_level == "geometric":
        gap = np.full_like(gap, gap.mean())
    ratio = np.exp(gap)
    weights = ratio.copy()
    if options.importance_cap is not None:
        weights = np.minimum(weights, options.importance_cap)
    if options.importance_band is not None:
        low, high = options.importance_band
        weights[(ratio < low) | (ratio > high)] = 0.0
    return weights


def loss_and_gradients(
    sequences: list[Sampled], options: ObjectiveOptions
) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """The step's loss, and its gradients with respect to each sequence's log-probabilities and entropies."""
    loss, to_logprobs, to_entropies = 0.0, [], []
    for which, sequence in enumerate(sequences):
        n = len(sequence.current)
        gradient, of_entropies = np.zeros(n), np.zeros(n)
        to_logprobs.append(gradient)
        to_entropies.append(of_entropies)
        if not n:
            continue
        weight = token_weight(sequences, which, options)
        corrected = options.importance_cap is not None or options.importance_band is not None
        old = sequence.engine
        weights = np.full(n, weight)
        if corrected:
            old = sequence.current if sequence.old is None else sequence.old
            weights = weight * importance(sequence, options)
        log_ratio = sequence.current - old
        whole = options.ratio == "sequence"
        low, high, a = 1.0 - options.clip_low, 1.0 + options.clip_high, sequence.advantage
        for t in range(n):
            ratio = np.exp(log_ratio.mean() if whole else log_ratio[t])
            bounded = min(max(ratio, low), high)
            if options.surrogate == "clipped_weight":
                loss -= weights[t] * bounded * a * sequence.current[t]
                gradient[t] -= weights[t] * bounded * a
                continue
            loss -= weights[t] * min(ratio * a, bounded * a)
            if ratio * a <= bounded * a:
                if whole:
                    gradient -= weights[t] * a * ratio / n
                else:
                    gradient[t] -= weights[t] * a * ratio
        if options.kl_weight:
            for t in range(n):
                d = sequence.reference[t] - sequence.current[t]
                loss += weight * options.kl_weight * (np.exp(d) - d - 1.0)
                gradient[t] += weight * options.kl_weight * (1.0 - np.exp(d))
        if options.entropy_weight:
            loss -= weight * options.entropy_weight * sequence.entropies.sum()
            of_entropies -= weight * options.entropy_weight
    return loss, to_logprobs, to_entropies
