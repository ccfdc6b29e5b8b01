from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.restarts import LONGEST_PAUSE_S, STEADY_S, RestartBudget

QUARTERS = st.integers(0, 400).map(lambda count: count / 4)
"""Seconds whose sums are exact."""


@given(lives=st.lists(QUARTERS, max_size=60), most=st.integers(0, 5), window_s=QUARTERS.map(lambda s: 1 + 5 * s))
def test_no_window_sees_more_restarts_than_the_budget_allows(lives: list[float], most: int, window_s: float) -> None:
    budget, now, restarts, young = RestartBudget(most, window_s), 0.0, list[float](), 0
    for lived in lives:
        now += lived
        young = 0 if lived >= STEADY_S else young + 1
        pause = budget.pause_after_death(now, lived)
        if pause is None:
            assert sum(at > now - window_s for at in restarts) >= most or young > most, "it had restarts left"
        else:
            assert 0 <= pause <= LONGEST_PAUSE_S
            now += pause
            restarts.append(now)
            assert sum(at > now - window_s for at in restarts) <= most


def test_who_dies_young_waits_longer_each_time() -> None:
    budget = RestartBudget(100, 1e9)
    pauses = [budget.pause_after_death(float(number), 0.1) for number in range(9)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_never_gets_through_a_start_is_given_up_though_each_takes_minutes() -> None:
    budget = RestartBudget(3, 600.0)
    assert [budget.pause_after_death(300.0 * number, 0.0) for number in range(4)] == [0.0, 0.5, 1.0, None]


def test_who_has_lived_for_a_while_is_started_again_at_once() -> None:
    budget = RestartBudget(100, 1e9)
    for number in range(5):
        budget.pause_after_death(float(number), 0.1)
    assert budget.pause_after_death(60.0, STEADY_S) == 0.0
    assert budget.pause_after_death(61.0, 0.1) == 0.0
    assert budget.pause_after_death(62.0, 0.1) == 0.5


def test_restarts_that_are_long_past_do_not_count() -> None:
    budget = RestartBudget(2, 100.0)
    assert budget.pause_after_death(0.0, 50.0) == 0.0
    assert budget.pause_after_death(60.0, 50.0) == 0.0
    assert budget.pause_after_death(90.0, 30.0) is None
    assert budget.pause_after_death(100.0, 30.0) == 0.0
