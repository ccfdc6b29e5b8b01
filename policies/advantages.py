"""Advantages within a group of rollouts for the same problem.

Invariants:
- computed over the group as it is learned from, after resampling (rStar2-Agent, eq. 6-7);
- a group whose rewards are all equal, a single rollout among them, has no advantages, whatever the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.options import AdvantageRule

STABILISER = 1e-6
"""Added to the standard deviation, which is never near zero when rewards differ: it only bounds the quotient."""


def carries_signal(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: its rewards are not all the same."""
    return any(reward != rewards[0] for reward in rewards)


def group_advantages(rewards: Sequence[float], rule: AdvantageRule = "standardised") -> list[float]:
    """The advantage of each rollout; all zero where all rewards are equal.

    Args:
        rule: `standardised`: `(r - mean) / (std + 1e-6)`, population standard deviation (eq. 7). `centred`: `r - mean`
            (Dr. GRPO). `leave_one_out`: `r - mean of the others` (RLOO).

    Raises `ValueError` for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite; got {list(rewards)}")
    if not carries_signal(rewards):
        return [0.0] * len(rewards)
    size = len(rewards)
    mean = math.fsum(rewards) / size
    centred = [reward - mean for reward in rewards]
    match rule:
        case "standardised":
            deviation = math.sqrt(math.fsum(value**2 for value in centred) / size)
            return [value / (deviation + STABILISER) for value in centred]
        case "centred":
            return centred
        case "leave_one_out":
            # r - (sum - r) / (size - 1) = (r - mean) * size / (size - 1)
            return [value * (size / (size - 1)) for value in centred]
