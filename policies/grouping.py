"""From the rollouts of a step to what the learner gets: resampling within groups, advantages, sequences.

Invariants:
- rollouts that the sandbox failed are void: they are counted nowhere;
- a group whose kept rewards are all equal teaches nothing and is left out, but counted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.advantages import carries_signal, group_advantages
from policies.batch import TrainingSequence, sequence_from_trajectory
from policies.options import ResamplingOptions
from policies.resampling import penalty, resample
from policies.trajectory import Trajectory


@dataclass(slots=True)
class LearningBatch:
    """What came of the groups of one step."""

    sequences: list[TrainingSequence] = field(default_factory=list)
    groups: int = 0
    groups_with_signal: int = 0
    kept: int = 0
    """Rollouts kept by resampling, in groups with and without signal."""
    void: int = 0
    """Rollouts that the sandbox failed."""


def learning_batch(
    groups: Sequence[Sequence[Trajectory]],
    rewards: dict[str, float],
    keep: int,
    options: ResamplingOptions,
    rng: random.Random,
) -> LearningBatch:
    """Resample each group to at most `keep` rollouts and give them advantages.

    Args:
        groups: the finished rollouts of the step, by group.
        rewards: trajectory id -> reward to learn from.
    """
    batch = LearningBatch()
    for group in groups:
        valid = [trajectory for trajectory in group if trajectory.finish != "sandbox_failure"]
        batch.groups += 1
        batch.void += len(group) - len(valid)
        if not valid:
            continue
        valid_rewards = [rewards[trajectory.id] for trajectory in valid]
        kept = resample(valid_rewards, [penalty(trajectory) for trajectory in valid], keep, options, rng)
        batch.kept += len(kept.indices)
        kept_rewards = [valid_rewards[index] for index in kept.indices]
        if not carries_signal(kept_rewards):
            continue
        for index, advantage in zip(kept.indices, group_advantages(kept_rewards), strict=True):
            batch.sequences.append(sequence_from_trajectory(valid[index], float(advantage), batch.groups_with_signal))
        batch.groups_with_signal += 1
    return batch


def shuffled_rewards(trajectories: Sequence[Trajectory], rng: random.Random) -> dict[str, float]:
    """The control experiment: the step's rewards, dealt out to its rollouts at random."""
    values = [trajectory.reward for trajectory in trajectories]
    rng.shuffle(values)
    return {trajectory.id: value for trajectory, value in zip(trajectories, values, strict=True)}
