from __future__ import annotations

from policies.rewinds import Rewinds


def test_a_run_goes_back_from_one_place_a_few_times_and_then_no_more() -> None:
    rewinds = Rewinds(most=3)
    assert [rewinds.may_go_back_from("after step 3") for _ in range(4)] == [True, True, True, False]


def test_a_run_that_comes_further_may_go_back_as_often_as_it_likes() -> None:
    rewinds = Rewinds(most=1)
    assert all(rewinds.may_go_back_from(f"after step {step}") for step in range(20))
