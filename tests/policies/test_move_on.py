"""When a stage is over before its last step."""

from __future__ import annotations

import pytest

from policies.move_on import MoveOnOptions, reason_to_move_on

PAPER = MoveOnOptions(window=5, least_steps=10, clip_share=0.1, reward_gain=0.01)


def steps(rewards: list[float], cut_off: float) -> list[dict[str, float]]:
    return [{"reward_mean": reward, "truncated_share": cut_off} for reward in rewards]


def test_a_plateau_with_many_cut_off_is_the_end() -> None:
    reason = reason_to_move_on(PAPER, steps([0.5] * 10, 0.12))
    assert reason is not None and "12.0%" in reason and "0.000" in reason


@pytest.mark.parametrize(
    "figures",
    [
        steps([0.5] * 9, 0.12),  # too early
        steps([0.5] * 10, 0.05),  # few are cut off
        steps([0.1 * n for n in range(10)], 0.12),  # the reward rises
    ],
)
def test_otherwise_the_stage_goes_on(figures: list[dict[str, float]]) -> None:
    assert reason_to_move_on(PAPER, figures) is None


def test_a_falling_reward_is_no_rise() -> None:
    assert reason_to_move_on(PAPER, steps([1 - 0.1 * n for n in range(10)], 0.12)) is not None


def test_one_condition_alone_is_enough_where_only_one_is_given() -> None:
    rule = MoveOnOptions(window=2, least_steps=2, clip_share=0.5)
    assert reason_to_move_on(rule, steps([0.0, 1.0], 0.6)) is not None
    with pytest.raises(ValueError, match="clip_share or reward_gain"):
        MoveOnOptions()


def test_steps_without_rollouts_do_not_count() -> None:
    assert reason_to_move_on(PAPER, [*steps([0.5] * 9, 0.2), {"void": 3.0}]) is not None
