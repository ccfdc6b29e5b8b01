import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import LeastOutstanding


def test_calls_spread_over_idle_environments() -> None:
    dispatch = LeastOutstanding(["a", "b", "c"])
    assert sorted(dispatch.choose(frozenset()) for _ in range(3)) == ["a", "b", "c"]


def test_an_environment_that_failed_a_call_is_avoided_while_there_is_another() -> None:
    dispatch = LeastOutstanding(["a", "b"])
    assert dispatch.choose(frozenset({"a"})) == "b"
    assert dispatch.choose(frozenset({"a", "b"})) in {"a", "b"}


def test_no_environment_is_an_error_with_the_fix() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LeastOutstanding([])


@given(st.lists(st.booleans(), max_size=60))
def test_outstanding_calls_never_differ_by_more_than_one_while_none_finish_out_of_turn(starts: list[bool]) -> None:
    dispatch, running = LeastOutstanding(["a", "b", "c"]), []
    for start in starts:
        if start or not running:
            running.append(dispatch.choose(frozenset()))
        else:
            busiest = max(set(running), key=running.count)
            running.remove(busiest)
            dispatch.finished(busiest)
        counts = [running.count(name) for name in ("a", "b", "c")]
        assert max(counts) - min(counts) <= 1


def test_a_session_is_where_it_was_unless_that_has_just_failed():
    dispatch = LeastOutstanding(["a", "b"])
    assert [dispatch.choose(frozenset(), prefer="b") for _ in range(3)] == ["b", "b", "b"]
    assert dispatch.choose(frozenset({"b"}), prefer="b") == "a"
    assert dispatch.choose(frozenset()) == "a"
