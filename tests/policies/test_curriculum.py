"""Streams of a data set's problems: every epoch has each problem once, and any position can be sought."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.curriculum import Cursor, ProblemOptions, ProblemStream, ShuffledEpochs
from policies.data_options import DatasetOptions
from policies.trajectory import Problem

OPTIONS = ProblemOptions(source="dataset", dataset=DatasetOptions(path="prepared.jsonl"))
PROBLEMS = [Problem(id=f"p{n}", question=f"Q{n}", gold="1") for n in range(11)]


def stream(run_seed: int = 0, held_out: bool = False) -> ProblemStream:
    return ProblemStream(OPTIONS, run_seed=run_seed, held_out=held_out, problems=PROBLEMS)


def test_each_epoch_holds_every_problem_once_in_an_order_of_its_own() -> None:
    ids = [stream().problem(position).id for position in range(33)]
    epochs = [ids[first : first + 11] for first in (0, 11, 22)]
    assert all(sorted(epoch) == sorted(p.id for p in PROBLEMS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(st.lists(st.integers(0, 100), max_size=20))
def test_a_position_has_the_same_problem_whatever_was_asked_before(positions: list[int]) -> None:
    walked = stream()
    assert [walked.problem(each) for each in positions] == [stream().problem(each) for each in positions]


@given(st.integers(0, 10_000))
def test_cursor_and_position_are_inverse(position: int) -> None:
    cursor = stream().cursor(position)
    assert 0 <= cursor.index < 11 and stream().position(cursor) == position


def test_a_cursor_into_another_order_is_refused() -> None:
    with pytest.raises(ValueError, match="no place in this stream"):
        stream().position(stream(run_seed=1).cursor(5))
    with pytest.raises(ValueError, match="no place in this stream"):
        stream().position(Cursor(0, 0, 11))


def test_runs_with_different_seeds_see_different_orders() -> None:
    assert [stream(1).problem(n) for n in range(11)] != [stream(2).problem(n) for n in range(11)]


def test_held_out_problems_come_in_the_file_s_order_and_end() -> None:
    held_out = stream(run_seed=5, held_out=True)
    assert [held_out.problem(n).id for n in range(11)] == [problem.id for problem in PROBLEMS]
    with pytest.raises(ValueError, match=r"holds 11; lower evaluation\.count"):
        held_out.problem(11)


@pytest.mark.parametrize("given_", [{"source": "dataset"}, {"dataset": {"name": "gsm8k"}}])
def test_source_and_data_set_go_together(given_: dict[str, object]) -> None:
    with pytest.raises(ValueError, match='source = "dataset" together with'):
        ProblemOptions.model_validate(given_)


@given(count=st.integers(1, 30), batch=st.integers(1, 12), batches=st.integers(1, 12), resume=st.integers(0, 11))
def test_whoever_goes_on_at_a_position_gets_what_the_others_get(
    count: int, batch: int, batches: int, resume: int
) -> None:
    whole = ShuffledEpochs(count, "7/sft")
    drawn = [whole.items(index * batch, batch) for index in range(batches)]
    fresh = ShuffledEpochs(count, "7/sft")
    assert [fresh.items(index * batch, batch) for index in range(resume, batches)] == drawn[resume:]


@given(count=st.integers(1, 40), epochs=st.integers(1, 4))
def test_each_epoch_has_each_item_once(count: int, epochs: int) -> None:
    order = ShuffledEpochs(count, "0/sft").items(0, count * epochs)
    for epoch in range(epochs):
        assert sorted(order[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [ShuffledEpochs(50, seed).items(first, 50) for seed in ("0/sft", "1/sft") for first in (0, 50)]
    assert len({tuple(order) for order in orders}) == 4
