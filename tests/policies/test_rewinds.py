from __future__ import annotations

import pytest

from policies.rewinds import Rewinds


@pytest.mark.parametrize("places", [[(2, 3)] * 4, [(2, 3), (2, 1), (2, 3), (2, 2)], [(2, 0), (1, 9), (0, 4), (1, 1)]])
def test_a_run_goes_back_a_few_times_without_coming_further_and_then_no_more(places: list[tuple[int, int]]) -> None:
    rewinds = Rewinds(most=3)
    assert [rewinds.may_go_back_from(place) for place in places] == [True, True, True, False]


def test_a_run_that_comes_further_may_go_back_as_often_as_it_likes() -> None:
    rewinds = Rewinds(most=1)
    places = [(done, step) for done in range(4) for step in range(5)]
    assert all(rewinds.may_go_back_from(place) for place in places)
