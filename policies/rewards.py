"""What the rollouts of a step are rewarded with, by the name that a stage's `rewards` gives.

A reward of one's own is a rule here: a function of trajectories, which hold the problem with its gold, the answer that
was found (`verdict.extracted`), every call with its result, and every token.

Invariants:
- each rollout gets one finite number. Above 0 it counts as correct where groups are resampled, whatever its verdict;
- a trajectory's own `reward` stays what its verdict says: evaluations and archives go by that, and what was stored can
  be learned from again under another rule (`greenroom replay learner --set stages.STAGE.rewards=...`);
- randomness comes from the step's generator, so that a replay draws the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from policies.trajectory import Trajectory

RewardName = Literal["verdict", "shuffled", "random"]

type RewardRule = Callable[[Sequence[Trajectory], random.Random], list[float]]
"""(rollouts of a round, all groups together; the step's draws) -> a reward for each, in order."""


def verdict_rewards(trajectories: Sequence[Trajectory], _: random.Random) -> list[float]:
    """1 for a right answer, else 0."""
    return [trajectory.reward for trajectory in trajectories]


def shuffled_rewards(trajectories: Sequence[Trajectory], rng: random.Random) -> list[float]:
    """A control experiment: a round's rewards, dealt out to its rollouts at random."""
    values = [trajectory.reward for trajectory in trajectories]
    rng.shuffle(values)
    return values


def random_rewards(trajectories: Sequence[Trajectory], rng: random.Random) -> list[float]:
    """Another one: 0 or 1 with equal chances, for each rollout."""
    return [float(rng.random() < 0.5) for _ in trajectories]


_RULES: dict[RewardName, RewardRule] = {
    "verdict": verdict_rewards,
    "shuffled": shuffled_rewards,
    "random": random_rewards,
}
assert _RULES.keys() == set(get_args(RewardName)), "RewardName and _RULES must name the same rules"


def rewards_of(name: RewardName, trajectories: Sequence[Trajectory], rng: random.Random) -> dict[str, float]:
    """Trajectory id -> the reward that is learned from.

    Raises `ValueError` if the rule does not give each rollout one finite number.
    """
    rewards = _RULES[name](trajectories, rng)
    if len(rewards) != len(trajectories):
        raise ValueError(
            f"rewards = {name!r} gave {len(rewards)} rewards to {len(trajectories)} rollouts; give each one, in order"
        )
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        if not math.isfinite(reward):
            raise ValueError(f"rewards = {name!r} gave {reward} to rollout {trajectory.id}; give a finite number")
    return {trajectory.id: float(reward) for trajectory, reward in zip(trajectories, rewards, strict=True)}
