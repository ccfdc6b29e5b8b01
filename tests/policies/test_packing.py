"""Packing: nothing lost, nothing over size, nothing predicted across a boundary."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import tokens
from policies.batch import TrainingSequence
from policies.packing import assign_rows, pack


@st.composite
def sequences(draw) -> list[TrainingSequence]:
    made = []
    for _ in range(draw(st.integers(0, 12))):
        length = draw(st.integers(1, 20))
        ids = draw(st.lists(st.integers(0, 1000), min_size=length, max_size=length))
        learned = [0, *draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))]
        logprobs = [-float(place + 1) if mark else 0.0 for place, mark in enumerate(learned)]
        made.append(
            TrainingSequence(
                ids=tokens.pack_ids(ids),
                learned=bytes(learned),
                logprobs=draw(st.sampled_from([b"", tokens.pack_floats(logprobs)])),
            )
        )
    return made


@given(lengths=st.lists(st.integers(1, 50), max_size=60), room=st.integers(50, 120))
def test_every_sequence_is_in_one_row_and_no_row_is_over_size(lengths, room) -> None:
    rows = assign_rows(lengths, room)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= room for row in rows)
    assert all(lengths[a] >= lengths[b] for row in rows for a, b in itertools.pairwise(row))
    assert rows == assign_rows(lengths, room)


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60), room=st.integers(50, 120))
def test_rows_are_well_filled(lengths, room) -> None:
    rows = assign_rows(lengths, room)
    filled = sorted(sum(lengths[index] for index in row) for row in rows)
    assert all(a + b > room for a, b in itertools.pairwise(filled)), "two rows would have fitted in one"


@given(batch=sequences())
def test_rows_hold_the_sequences_and_predict_each_learned_token_from_the_one_before(batch) -> None:
    learned = set()
    for row in pack(batch, 25):
        for place, index in enumerate(row.sequences):
            start, stop = row.boundaries[place], row.boundaries[place + 1]
            assert row.ids[start:stop].tolist() == tokens.unpack_ids(batch[index].ids)
            assert row.positions[start:stop].tolist() == list(range(stop - start))
        for predictor, target, owner, logprob in zip(
            row.predictors, row.targets, row.owners, row.logprobs, strict=True
        ):
            place = row.sequences.tolist().index(owner)
            start, stop = row.boundaries[place], row.boundaries[place + 1]
            assert start <= predictor < predictor + 1 < stop
            at = int(predictor + 1 - start)
            assert batch[owner].learned[at] == 1 and row.ids[predictor + 1] == target
            assert logprob == (np.float32(-(at + 1)) if batch[owner].logprobs else 0)
            learned.add((int(owner), at))
    marked = {(i, at) for i, sequence in enumerate(batch) for at, mark in enumerate(sequence.learned) if mark}
    assert learned == marked


def test_a_sequence_longer_than_a_row_is_refused_with_the_option_to_change() -> None:
    with pytest.raises(ValueError, match="21 tokens does not fit a micro batch of 20; raise micro_batch_tokens"):
        assign_rows([3, 21], 20)
