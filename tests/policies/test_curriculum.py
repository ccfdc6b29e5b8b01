"""Epochs: a position is all that is needed to go on."""

from hypothesis import given
from hypothesis import strategies as st

from policies.curriculum import ShuffledEpochs


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
