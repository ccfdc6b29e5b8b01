"""From the rollouts of a step to what the learner gets: resampling within groups, advantages, masks, sequences.

Invariants:
- rollouts that the sandbox failed are void: they are counted nowhere;
- a group whose kept rewards are all equal teaches nothing and is left out, but counted;
- a masked rollout has its part in the group's baseline and is not learned from; a group of which nothing is left to
  learn carries no signal;
- a step has as many rounds as its groups ask for, within the bound of dynamic sampling: a replay of the same groups has
  the same rounds, and the same draws in each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.advantages import carries_signal, group_advantages
from policies.batch import TrainingSequence, sequence_from_trajectory
from policies.options import MaskingOptions
from policies.resampling import penalty, resample
from policies.rewards import rewards_of
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory


class TrainedGroup(NamedTuple):
    """A group that is learned from."""

    group: str
    problem: str
    """Id of the problem."""
    rollouts: tuple[str, ...]
    """Ids of the rollouts, in the order in which the learner gets them."""
    advantages: tuple[float, ...]


def resampling_random(run_seed: int, stage: str, step: int) -> random.Random:
    """The draws of a step's resampling: a stream for each step, so that a run can be resumed, or replayed, at any."""
    return random.Random(f"{run_seed}/{stage}/{step}")


@dataclass(slots=True)
class LearningBatch:
    """What came of the groups of one step, or of several rounds of it."""

    sequences: list[TrainingSequence] = field(default_factory=list)
    trained: list[TrainedGroup] = field(default_factory=list)
    """Where the sequences come from, in their order."""
    taken: list[str] = field(default_factory=list)
    """Ids of all groups, in the order in which they came; those of which no rollout was finished have none."""
    groups: int = 0
    groups_with_signal: int = 0
    groups_all_correct: int = 0
    """Of those without signal: nothing but correct rollouts was kept."""
    groups_all_wrong: int = 0
    kept: int = 0
    """Rollouts kept by resampling, in groups with and without signal."""
    masked: int = 0
    """Of the rollouts kept in groups whose rewards differ, those that are not learned from."""
    void: int = 0
    """Rollouts that the sandbox failed."""
    rewards: list[float] = field(default_factory=list)
    """Of all rollouts that are not void, before resampling."""
    positive_calls: int = 0
    """Tool calls of the correct rollouts that resampling kept."""
    positive_errors: int = 0
    """Of these, calls that failed by the model's fault."""

    def figures(self) -> dict[str, float | None]:
        """Under the names of the run's metrics."""
        return {
            "groups": float(self.groups),
            "groups_with_signal": float(self.groups_with_signal),
            "groups_all_correct": float(self.groups_all_correct),
            "groups_all_wrong": float(self.groups_all_wrong),
            "zero_signal_share": 1.0 - self.groups_with_signal / self.groups if self.groups else 0.0,
            "kept_rollouts": float(self.kept),
            "masked_rollouts": float(self.masked),
            "learned_rollouts": float(len(self.sequences)),
            "learned_reward_mean": sum(self.rewards) / len(self.rewards) if self.rewards else None,
            "tool_error_share_in_kept_positives": (
                self.positive_errors / self.positive_calls if self.positive_calls else None
            ),
        }


class StepRounds:
    """The rounds in which a step's groups come, and what is learned from them.

    Example:
        rounds = StepRounds(options, resampling_random(run_seed, stage, step))
        while count := rounds.wanted:
            rounds.add(sample(count))
        learn(rounds.batch)
    """

    def __init__(self, options: ReinforcementOptions, rng: random.Random) -> None:
        self._options, self._rng = options, rng
        self.batch = LearningBatch()
        self.count = 0
        """Rounds so far."""

    @property
    def wanted(self) -> int:
        """Groups of the next round; 0 where enough carry signal, or no further round is allowed."""
        options, refill = self._options, self._options.dynamic_sampling
        if not self.count:
            return options.prompts
        if refill is None or self.count > refill.rounds:
            return 0
        enough = options.prompts if refill.groups is None else refill.groups
        return max(0, enough - self.batch.groups_with_signal)

    def add(self, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Take in a round: finished rollouts, by group."""
        trajectories = [trajectory for group in groups for trajectory in group]
        rewards = rewards_of(self._options.rewards, trajectories, self._rng)
        add_groups(self.batch, groups, rewards, self._options, self._rng)
        self.count += 1


def add_groups(
    batch: LearningBatch,
    groups: Sequence[Sequence[Trajectory]],
    rewards: dict[str, float],
    options: ReinforcementOptions,
    rng: random.Random,
) -> None:
    """Resample each group to at most `options.group` rollouts, give them advantages, and put them into `batch`.

    Args:
        groups: finished rollouts, by group.
        rewards: trajectory id -> reward to learn from.
    """
    for group in groups:
        valid = [trajectory for trajectory in group if trajectory.finish != "sandbox_failure"]
        batch.groups += 1
        batch.taken += [group[0].group] if group else []
        batch.void += len(group) - len(valid)
        if not valid:
            continue
        valid_rewards = [rewards[trajectory.id] for trajectory in valid]
        batch.rewards += valid_rewards
        penalties = [penalty(trajectory) for trajectory in valid]
        indices = resample(valid_rewards, penalties, options.group, options.resampling, rng).indices
        _add_group(batch, [valid[index] for index in indices], [valid_rewards[index] for index in indices], options)


def _add_group(
    batch: LearningBatch,
    kept: Sequence[Trajectory],
    rewards: Sequence[float],
    options: ReinforcementOptions,
) -> None:
    batch.kept += len(kept)
    positives = [trajectory for trajectory, reward in zip(kept, rewards, strict=True) if reward > 0]
    batch.positive_calls += sum(len(trajectory.calls) for trajectory in positives)
    batch.positive_errors += sum(trajectory.tool_errors for trajectory in positives)
    if not carries_signal(rewards):
        batch.groups_all_correct += len(positives) == len(kept)
        batch.groups_all_wrong += not positives
        return
    learned = [
        (trajectory, float(value))
        for trajectory, value in zip(kept, group_advantages(rewards, options.objective.advantage), strict=True)
        if not is_masked(trajectory, options.masking)
    ]
    batch.masked += len(kept) - len(learned)
    if not learned:
        return
    batch.sequences += [sequence_from_trajectory(each, value, batch.groups_with_signal) for each, value in learned]
    batch.groups_with_signal += 1
    first = learned[0][0]
    ids, advantages = [each.id for each, _ in learned], [value for _, value in learned]
    batch.trained.append(TrainedGroup(first.group, first.problem.id, tuple(ids), tuple(advantages)))


def is_masked(trajectory: Trajectory, masking: MaskingOptions) -> bool:
    """Whether nothing of this rollout is learned."""
    return (masking.void_turns and trajectory.has_void_turn) or (masking.overlong and trajectory.truncated)
