"""Estimates against independent computations: enumeration of all draws, and simulation."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.evaluation.estimators import (
    Vote,
    accuracy_interval,
    majority,
    over_problems,
    pass_at_k,
)
from orchestration.metrics import wilson_interval
from policies.run_progress import Figures


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one(outcomes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    draws = list(combinations(outcomes, k))
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_published_values() -> None:
    """With one draw it is the average, with all of them whether any is right; 1 - (2/5)(1/4) in between."""
    assert pass_at_k(5, 3, 1) == pytest.approx(0.6)
    assert pass_at_k(5, 3, 2) == pytest.approx(1 - (2 / 5) * (1 / 4))
    assert (pass_at_k(5, 1, 5), pass_at_k(5, 0, 5)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="at least 6"):
        pass_at_k(5, 3, 6)


@given(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=12))
def test_majority_is_what_a_vote_with_a_random_tie_break_gives(answers: list[str | None]) -> None:
    votes = [Vote(answer, answer == "1") for answer in answers]
    ballots = Counter(answer for answer in answers if answer is not None)
    best = [answer for answer, count in ballots.items() if count == max(ballots.values())] if ballots else []
    assert majority(votes) == pytest.approx(sum(answer == "1" for answer in best) / len(best) if best else 0.0)


def test_right_answers_in_different_notation_vote_together() -> None:
    assert majority([Vote("1/2", True), Vote("0.5", True), Vote("7", False)]) == 1.0
    assert majority([Vote("1/2", True), Vote("7", False), Vote("7", False)]) == 0.0


def test_the_bootstrap_agrees_with_the_normal_interval_of_many_problems() -> None:
    values = np.random.default_rng(1).beta(2, 3, size=400)
    estimate = over_problems(list(values))
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert over_problems(list(values)) == estimate, "same seed, same interval"


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(200):
        estimate = over_problems(list(rng.beta(2, 3, size=60)), seed=trial)
        inside += estimate.low <= 0.4 <= estimate.high
    assert 0.89 <= inside / 200 <= 0.99


def test_all_right_has_wilson_s_interval() -> None:
    assert over_problems([1.0] * 20)[1:] == tuple(wilson_interval(20, 20))


def test_samples_of_a_problem_that_all_say_the_same_make_nothing_surer() -> None:
    once: Figures = {"samples": 1.0, "asked": 40.0, "correct": 20.0}
    again: Figures = {"samples": 4.0, "asked": 160.0, "correct": 80.0, "problems_solved_0_times": 20.0}
    again |= {f"problems_solved_{count}_times": 0.0 for count in (1, 2, 3)} | {"problems_solved_4_times": 20.0}
    assert accuracy_interval(again) == accuracy_interval(once) == wilson_interval(20, 40)


def test_samples_that_differ_have_the_bootstrap_s_interval() -> None:
    figures: Figures = {"samples": 2.0, "asked": 60.0, "correct": 34.0}
    figures |= {"problems_solved_0_times": 6.0, "problems_solved_1_times": 14.0, "problems_solved_2_times": 10.0}
    estimate = over_problems([0.0] * 6 + [0.5] * 14 + [1.0] * 10)
    assert accuracy_interval(figures) == estimate[1:]
    assert estimate.low < 34 / 60 < estimate.high
