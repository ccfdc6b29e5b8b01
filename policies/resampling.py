"""Resample-on-correct: which rollouts of an oversampled group are learned from.

Invariants:
- exactly `keep` rollouts are kept, or the whole group where it has no more than that;
- both sides keep their claim only as far as there are rollouts to fill it; the other side fills the rest;
- randomness comes from the caller's generator alone, drawn in a fixed order: same seed, same choice.

Source: rStar2-Agent (arXiv 2508.20722), GRPO-RoC, eq. 4-5 and the sampling rule below them. Where the paper is silent
(zero penalties, replacement, odd counts) the rule is completed here: `epsilon`, draws without replacement, half of the
wrong ones rounded down. The paper's release differs in the places that `ResamplingOptions` names.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from policies.options import ResamplingOptions
from policies.trajectory import Trajectory

NO_CALLS_PENALTY = 0.5
"""Eq. 4: a correct rollout that ran no code is neither clean nor sloppy."""


def error_penalty(trajectory: Trajectory) -> float:
    """Eq. 4, in [0, 1]: the share of tool calls that failed by the model's fault.

    A call that the sandbox itself failed is no evidence either way: it counts neither as a call nor as an error.
    """
    calls = sum(record.result.status != "sandbox_failure" for record in trajectory.calls)
    return trajectory.tool_errors / calls if calls else NO_CALLS_PENALTY


def format_penalty(trajectory: Trajectory) -> float:
    """Eq. 5, in [0, 1]: answering not at all, or more than once.

    Turns and answer tags come from the trajectory's structure; the release's regular expression over decoded text
    misses a turn.
    """
    if trajectory.answer_tags == 0:
        return 1.0
    assert trajectory.turns > 0, f"trajectory {trajectory.id} has {trajectory.answer_tags} answer tags in no turn"
    return min(1.0, (trajectory.answer_tags - 1) / trajectory.turns)


def penalty(trajectory: Trajectory) -> float:
    """`p_err + p_format`, in [0, 2]; correct rollouts with less of it are kept more often."""
    return error_penalty(trajectory) + format_penalty(trajectory)


class Kept(NamedTuple):
    """What resampling chose."""

    indices: tuple[int, ...]
    """Into the group, ascending."""
    positives: int
    """How many of them are correct."""
    negatives: int


def resample(
    rewards: Sequence[float],
    penalties: Sequence[float],
    keep: int,
    options: ResamplingOptions,
    rng: random.Random,
) -> Kept:
    """Choose the rollouts of one group that are learned from.

    Args:
        rewards: `[n]`; a rollout is correct (positive) if its reward is above 0.
        penalties: `[n]`, each at least 0; those of negatives are not looked at.
        keep: G, the group size to learn from. Rule `none` ignores it: all that was sampled is kept.

    Raises:
        ValueError: lengths differ, `keep` is below 1, or a penalty is negative or not a number.
    """
    if len(rewards) != len(penalties):
        raise ValueError(f"{len(rewards)} rewards but {len(penalties)} penalties; give one of each for every rollout")
    if keep < 1:
        raise ValueError(f"keep is {keep}; a group keeps at least one rollout")
    if not all(value >= 0 and math.isfinite(value) for value in penalties):
        raise ValueError(f"penalties must be finite and at least 0; got {list(penalties)}")
    positives = [index for index, reward in enumerate(rewards) if reward > 0]
    negatives = [index for index, reward in enumerate(rewards) if not reward > 0]
    if options.rule == "none" or len(rewards) <= keep:
        return Kept(tuple(range(len(rewards))), len(positives), len(negatives))

    n_positive, n_negative = _shares(len(positives), len(negatives), keep, options)
    chosen = _chosen_positives(positives, penalties, n_positive, options, rng)
    chosen += rng.sample(negatives, n_negative)
    return Kept(tuple(sorted(chosen)), n_positive, n_negative)


def _chosen_positives(
    positives: Sequence[int], penalties: Sequence[float], count: int, options: ResamplingOptions, rng: random.Random
) -> list[int]:
    match options.positives:
        case "sorted":
            return sorted(positives, key=lambda index: penalties[index])[:count]
        case "weighted":
            return _weighted_draws(positives, penalties, count, options.epsilon, rng)


def _shares(positives: int, negatives: int, keep: int, options: ResamplingOptions) -> tuple[int, int]:
    """How many of each side to keep of a group larger than `keep`; the two sum to `keep`."""
    n_negative = min(negatives // 2, keep)
    n_negative = max(n_negative, min(options.minimum_negatives, negatives, keep))
    n_positive = keep - n_negative
    n_positive = max(n_positive, min(options.minimum_positives, positives, keep))
    n_positive = min(n_positive, positives)
    n_negative = keep - n_positive
    if n_negative > negatives:
        n_negative = negatives
        n_positive = keep - n_negative
    assert 0 <= n_positive <= positives and 0 <= n_negative <= negatives, (positives, negatives, keep, options)
    return n_positive, n_negative


def _weighted_draws(
    pool: Sequence[int], penalties: Sequence[float], count: int, epsilon: float, rng: random.Random
) -> list[int]:
    """`count` successive draws without replacement, each with probability proportional to `1 / (penalty + epsilon)`.

    The keys `u ** (1 / weight)`, largest first, are distributed as those draws (Efraimidis and Spirakis 2006). Compared
    by logarithm: `log(u) * (penalty + epsilon)` neither underflows for small weights nor rounds to 1 for large ones.
    """
    keys = {index: math.log(1.0 - rng.random()) * (penalties[index] + epsilon) for index in pool}
    return heapq.nlargest(count, pool, key=keys.__getitem__)
