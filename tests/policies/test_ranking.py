from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from policies.ranking import Ranking

NAMES = "abcde"


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, len(NAMES)))))
def test_generators_come_in_the_order_of_their_ranks_whatever_has_changed_and_however_many_are_looked_at(
    steps: list[tuple[str, int, int]],
) -> None:
    values = dict.fromkeys(NAMES, 0)
    ranking = Ranking([(name, name) for name in NAMES], lambda name: (values[name], name))
    for name, value, looked_at in steps:
        values[name] = value
        ranking.change(name)
        found = list(islice(ranking.best_first(), looked_at))
        assert found == sorted(NAMES, key=lambda name: (values[name], name))[:looked_at]


def test_changes_of_others_are_nothing_to_a_ranking() -> None:
    ranking = Ranking([("a", 1), ("b", 0)], lambda value: (value,))
    ranking.change("c")
    assert list(ranking.best_first()) == [0, 1]


def test_a_rank_is_found_once_for_each_change_that_is_looked_at() -> None:
    found: list[str] = []

    def rank(name: str) -> tuple[str]:
        found.append(name)
        return (name,)

    ranking = Ranking([(name, name) for name in NAMES], rank)
    for _ in range(3):
        ranking.change("b")
        ranking.change("b")
        assert next(ranking.best_first()) == "a"
    assert found == [*NAMES, "b", "b"]


def test_no_ranking_of_nothing() -> None:
    assert list(Ranking([], lambda books: (0,)).best_first()) == []
