"""When a stage is over before its last step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.move_on import MoveOnOptions, read_again, reason_to_move_on
from policies.run_progress import Figures

PAPER = MoveOnOptions(window=5, least_steps=10, clip_share=0.1, reward_gain=0.01)


def steps(rewards: list[float], cut_off: float) -> list[Figures]:
    return [{"reward_mean": reward, "truncated_share": cut_off} for reward in rewards]


def test_a_plateau_with_many_cut_off_is_the_end() -> None:
    reason = reason_to_move_on(PAPER, steps([0.5] * 10, 0.12), 10)
    assert reason is not None and "12.0%" in reason and "0.000" in reason


@pytest.mark.parametrize(
    "figures",
    [
        steps([0.5] * 9, 0.12),  # too early
        steps([0.5] * 10, 0.05),  # few are cut off
        steps([0.1 * n for n in range(10)], 0.12),  # the reward rises
    ],
)
def test_otherwise_the_stage_goes_on(figures: list[Figures]) -> None:
    assert reason_to_move_on(PAPER, figures, len(figures)) is None


def test_a_falling_reward_is_no_rise() -> None:
    assert reason_to_move_on(PAPER, steps([1 - 0.1 * n for n in range(10)], 0.12), 10) is not None


def test_one_condition_alone_is_enough_where_only_one_is_given() -> None:
    rule = MoveOnOptions(window=2, least_steps=2, clip_share=0.5)
    assert reason_to_move_on(rule, steps([0.0, 1.0], 0.6), 2) is not None
    with pytest.raises(ValueError, match="clip_share or reward_gain"):
        MoveOnOptions()


def test_steps_without_rollouts_do_not_count() -> None:
    assert reason_to_move_on(PAPER, [*steps([0.5] * 9, 0.2), {"void": 3.0}], 10) is not None


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([None, 0.0, 0.1, 1.0])), min_size=1, max_size=40),
    st.builds(
        MoveOnOptions,
        window=st.integers(1, 6),
        least_steps=st.integers(1, 15),
        clip_share=st.just(0.1),
        reward_gain=st.none() | st.just(0.2),
    ),
)
def test_what_is_kept_is_bounded_and_as_good_as_the_whole_past(
    past: list[tuple[float, float | None]], rule: MoveOnOptions
) -> None:
    every: list[Figures] = [{"truncated_share": cut, "reward_mean": reward, "void": 1.0} for cut, reward in past]
    kept: tuple[Figures, ...] = ()
    for done, figures in enumerate(every, 1):
        kept = read_again(rule, (*kept, figures))
        assert len(kept) <= 2 * rule.window and set().union(*kept) == {"truncated_share", "reward_mean"}
        assert reason_to_move_on(rule, kept, done) == reason_to_move_on(rule, every[:done], done)


def test_without_a_rule_nothing_of_the_past_is_kept() -> None:
    assert read_again(None, steps([0.5] * 10, 0.1)) == ()
