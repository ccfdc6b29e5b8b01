"""When decoding sequences need another block, counted token by token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.decoding_sequences import DecodingSequences


def opened(computed: list[int], block: int, steps: int) -> list[list[int]]:
    """For each step, the sequences that have no room left in their last block when it begins."""
    return [[number for number, tokens in enumerate(computed) if (tokens + step) % block == 0] for step in range(steps)]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(0, 30),
    st.data(),
)
def test_blocks_are_opened_when_the_last_ones_are_full(
    computed: list[int], block: int, clock: int, steps: int, data: st.DataObject
) -> None:
    decoding = DecodingSequences[str](block)
    for number, tokens in enumerate(computed):
        decoding.enter(number, tokens - clock, str(number))
    gone = data.draw(st.sets(st.sampled_from(range(len(computed))))) - {0}
    for number in gone:
        assert decoding.holds(number, computed[number] - clock)
        assert decoding.leave(number, computed[number] - clock)
        assert not decoding.leave(number, computed[number] - clock), "it is gone already"
    left = {number: tokens for number, tokens in enumerate(computed) if number not in gone}
    plan = [[number for number in each if number in left] for each in opened(computed, block, steps + 200)]

    assert (decoding.count, decoding.bases) == (len(left), sum(left.values()) - clock * len(left))
    for step in range(steps):
        assert decoding.opening_at(clock + step) == {number: str(number) for number in plan[step]}
    assert decoding.blocks_in(clock, steps) == sum(map(len, plan[:steps]))

    free = data.draw(st.integers(0, 30))
    most, needed = decoding.steps_within(clock, free)
    assert needed == sum(map(len, plan[:most])) <= free < sum(map(len, plan[: most + 1]))
