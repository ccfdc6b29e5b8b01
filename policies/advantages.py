"""Advantages within a group of rollouts for the same problem.

Invariant: computed over the group as it is learned from, after resampling (rStar2-Agent, eq. 6-7). Another estimator is
another function from rewards to advantages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STABILISER = 1e-6
"""Added to the standard deviation, which is never near zero when rewards differ: it only bounds the quotient."""


def carries_signal(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: its rewards are not all the same."""
    return any(reward != rewards[0] for reward in rewards)


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """`(r - mean) / (std + 1e-6)` with the population standard deviation; all zero where all rewards are equal.

    Raises `ValueError` for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite; got {list(rewards)}")
    if not carries_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + STABILISER) for reward in rewards]
