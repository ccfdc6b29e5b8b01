"""A demand is what its rollouts are expected to hold, from where they are taken to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.demand_forecast import Demand, Session
from policies.group_lengths import KINDS, Group, Groups
from policies.length_prediction import BUCKETS, LengthPrediction

LONGEST = 6400


@given(st.lists(st.tuples(st.integers(0, BUCKETS - 1), st.sampled_from(["", "a", "b"])), max_size=30))
def test_a_demand_counted_anew_is_the_sum_of_its_rollouts(rollouts: list[tuple[int, str]]) -> None:
    lengths, groups = LengthPrediction(LONGEST), Groups()
    groups.named("a").kind, groups.named("b").kind = 0, KINDS - 1
    one_by_one, at_once = Demand(), Demand()
    sessions = [Session(groups.named(name), bucket * lengths.width, bucket, 0.0) for bucket, name in rollouts]
    for session in sessions:
        one_by_one.enter(session.place, lengths)
    at_once.sessions.update((str(number), session) for number, session in enumerate(sessions))
    at_once.locate(lengths, 0.0)
    at_once.recount(lengths)
    assert at_once.work() == pytest.approx(one_by_one.work())
    assert at_once.expected_peak() == pytest.approx(one_by_one.expected_peak())
    assert at_once.peak_with(5, lengths, 2.0) == pytest.approx(one_by_one.peak_with(5, lengths, 2.0))


def test_many_short_turns_do_not_make_the_speed() -> None:
    """One long turn of 100 s at 10 tokens a second, and ten of 1 s that read a response at once."""
    lengths, demand, group = LengthPrediction(LONGEST), Demand(), Group("")
    session = Session(group, 0, 0, 0.0)
    demand.learn_speed(session, 1000, 100.0)
    for _ in range(10):
        demand.learn_speed(Session(group, 0, 0, 0.0), 50, 1.0)
    waits = Session(group, 0, 0, 0.0)
    demand.sessions["waits"] = waits
    demand.locate(lengths, 100.0)
    assert waits.bucket * lengths.width < 1300, "not 2,500, as the mean of the speeds has it"
