"""Rewards that are learned from: one finite number for each rollout, whatever rule gives them."""

import random

import pytest

from policies import rewards
from policies.rewards import rewards_of
from tests.policies.test_grouping import group

MEMBERS = group("a", [1.0] * 50 + [0.0] * 50)


def test_verdicts_are_the_rollouts_own() -> None:
    assert rewards_of("verdict", MEMBERS, random.Random(0)) == {each.id: each.reward for each in MEMBERS}


def test_shuffled_rewards_keep_their_sum_and_lose_their_owners() -> None:
    dealt = rewards_of("shuffled", MEMBERS, random.Random(0))
    assert sum(dealt.values()) == 50
    assert 15 < sum(dealt[each.id] == each.reward for each in MEMBERS) < 85


def test_a_coin_does_not_know_the_verdict() -> None:
    tossed = rewards_of("random", MEMBERS, random.Random(0))
    assert set(tossed.values()) == {0.0, 1.0}
    assert 10 < sum(tossed[each.id] for each in MEMBERS[:50]) < 40


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0] * 99, "'verdict' gave 99 rewards to 100 rollouts; give each one"),
        ([0.0] * 98 + [float("nan"), 1.0], "'verdict' gave nan to rollout a/98; give a finite number"),
        ([float("inf")] * 100, "'verdict' gave inf to rollout a/0"),
    ],
)
def test_a_rule_that_gives_something_else_is_named(
    given: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rewards._RULES, "verdict", lambda trajectories, rng: given)
    with pytest.raises(ValueError, match=said):
        rewards_of("verdict", MEMBERS, random.Random(0))
