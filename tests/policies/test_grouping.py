"""From rollouts to what is learned: void rollouts and groups without signal are left out, and counted."""

import random

from policies.grouping import learning_batch, shuffled_rewards
from policies.options import ResamplingOptions
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory


def group(name: str, rewards: list[float], finish: str = "answered"):
    return [
        trajectory(PROMPT, MODEL, id=f"{name}/{index}", group=name, sample=index, reward=reward, finish=finish)
        for index, reward in enumerate(rewards)
    ]


def batch_of(groups, keep: int = 4):
    rewards = {each.id: each.reward for members in groups for each in members}
    return learning_batch(groups, rewards, keep, ResamplingOptions(), random.Random(0))


def test_half_of_an_oversampled_group_is_kept_and_its_advantages_sum_to_zero() -> None:
    batch = batch_of([group("a", [1, 1, 1, 1, 0, 0, 0, 0])])
    assert batch.kept == len(batch.sequences) == 4
    assert abs(sum(sequence.advantage for sequence in batch.sequences)) < 1e-6
    assert {sequence.group for sequence in batch.sequences} == {0}


def test_groups_without_signal_are_counted_and_not_learned() -> None:
    batch = batch_of([group("a", [1] * 8), group("b", [0] * 8), group("c", [1, 0] * 4)])
    assert (batch.groups, batch.groups_with_signal) == (3, 1)
    assert len(batch.sequences) == 4 and batch.kept == 12


def test_void_rollouts_count_nowhere() -> None:
    mixed = group("a", [1, 0, 1, 0]) + group("b", [0, 0], finish="sandbox_failure")
    batch = batch_of([mixed], keep=8)
    assert batch.void == 2
    assert len(batch.sequences) == 4


def test_a_group_that_is_all_void_is_no_fault() -> None:
    batch = batch_of([group("a", [0, 0], finish="sandbox_failure")])
    assert (batch.groups, batch.void, batch.sequences) == (1, 2, [])


def test_shuffled_rewards_keep_their_sum_and_lose_their_owners() -> None:
    members = group("a", [1.0] * 50 + [0.0] * 50)
    dealt = shuffled_rewards(members, random.Random(0))
    assert sum(dealt.values()) == 50
    assert 15 < sum(dealt[each.id] == each.reward for each in members) < 85
