from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from policies.attempts import ABSENT_S, LONGEST_PAUSE_S, Attempts


@given(held=st.lists(st.sampled_from([0.0, 0.1, 1.0, 60.0, math.inf]), max_size=40), most=st.integers(1, 4))
def test_an_item_is_set_aside_after_as_many_workers_as_it_may_fail_and_not_before(held: list[float], most: int) -> None:
    attempts, strikes = Attempts(most, patience_s=1e9), 0
    for now, seconds in enumerate(held):
        strikes += seconds >= ABSENT_S
        pause = attempts.pause_after_failure(float(now), seconds)
        assert attempts.strikes == strikes
        assert (pause is None) == (strikes >= most)
        if pause is None:
            return
        assert 0 < pause <= LONGEST_PAUSE_S


def test_workers_that_are_absent_are_waited_for_and_do_not_count() -> None:
    attempts = Attempts(2, patience_s=60.0)
    assert attempts.pause_after_failure(0.0, 5.0) is not None
    assert all(attempts.pause_after_failure(float(now), 0.0) for now in range(1, 60))
    assert attempts.strikes == 1
    assert attempts.pause_after_failure(62.0, 0.0) is None, "nobody came"
