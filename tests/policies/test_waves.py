"""Waves: seats are fixed in advance, fit the engines, and nobody waits in vain at a barrier."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.balancing import Capacity
from policies.waves import Seat, WaveBarrier, deal


def capacity(name: str, kv_tokens: int) -> Capacity:
    return Capacity(generator=name, incarnation=0, kv_tokens=kv_tokens, block_tokens=32, max_sequence_tokens=4096)


def fit(wave: Iterable[Seat], capacities: list[Capacity], max_tokens: int, headroom: float) -> bool:
    blocks = -(-max_tokens // 32) * 32
    return all(
        sum(seat.generator == each.generator for seat in wave) * blocks <= each.kv_tokens * (1 - headroom)
        for each in capacities
    )


@given(
    rollouts=st.integers(1, 60),
    kv=st.lists(st.integers(256, 4096), min_size=1, max_size=4),
    max_tokens=st.integers(2, 200),
    headroom=st.sampled_from([0.0, 0.1]),
)
def test_each_rollout_has_one_seat_and_each_wave_fits(
    rollouts: int, kv: list[int], max_tokens: int, headroom: float
) -> None:
    capacities = [capacity(f"generator-{index}", tokens) for index, tokens in enumerate(kv)]
    waves = deal("rl/3/0", rollouts, max_tokens, capacities, headroom)
    seats = [seat for wave in waves for seat in wave]
    assert len(seats) == rollouts
    assert len({(seat.wave, seat.generator, seat.index) for seat in seats}) == rollouts
    assert len({seat.wave for seat in seats}) == len(waves)
    for wave in waves:
        assert fit(wave, capacities, max_tokens, headroom)
        for each in capacities:
            mine = [seat for seat in wave if seat.generator == each.generator]
            assert [seat.index for seat in mine] == list(range(len(mine)))
            assert all(seat.size == len(mine) for seat in mine)


def test_what_fits_nowhere_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"generator-1 has 64 tokens of KV cache, too few for a rollout of 100"):
        deal("rl/0/0", 4, 100, [capacity("generator-0", 256), capacity("generator-1", 64)], 0.0)
    with pytest.raises(ValueError, match="no generator can be reached"):
        deal("rl/0/0", 4, 100, [], 0.0)


class Barrier(RuleBasedStateMachine):
    """Members arrive, leave, are replaced by other attempts, and their ends are told late: in any order."""

    @initialize(size=st.integers(1, 5))
    def open(self, size: int) -> None:
        self.size, self.barrier, self.serial = size, WaveBarrier(size), 0
        self.state = dict.fromkeys(range(size), "away")
        """away: may still come; waiting: for its turn; playing: its turn runs; gone."""
        self.lease: dict[int, str] = {}
        self.old: list[tuple[int, str]] = []

    def begun(self, leases: tuple[str, ...]) -> None:
        if leases:
            assert "away" not in self.state.values() and "playing" not in self.state.values()
            waiting = [index for index in range(self.size) if self.state[index] == "waiting"]
            assert list(leases) == [self.lease[index] for index in waiting], "all of them, in order of their seats"
            for index in waiting:
                self.state[index] = "playing"

    @rule(index=st.integers(0, 4), anew=st.booleans())
    def arrive(self, index: int, anew: bool) -> None:
        if index >= self.size or self.state[index] == "waiting":
            return
        if anew or index not in self.lease or self.state[index] == "gone":
            if index in self.lease:
                self.old.append((index, self.lease[index]))
            self.serial += 1
            self.lease[index] = f"lease-{self.serial}"
        self.state[index] = "waiting"
        self.begun(self.barrier.arrive(index, self.lease[index]))

    @rule(index=st.integers(0, 4), given_up=st.booleans())
    def leave(self, index: int, given_up: bool) -> None:
        if index >= self.size or (index not in self.lease and not given_up):
            return
        self.state[index] = "gone"
        self.begun(self.barrier.leave(index, None if given_up else self.lease[index]))

    @precondition(lambda self: self.old)
    @rule()
    def an_old_end_is_told_late(self) -> None:
        index, lease = self.old.pop()
        self.begun(self.barrier.leave(index, lease))

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        states = list(self.state.values())
        assert "waiting" not in states or "away" in states or "playing" in states
        assert self.barrier.empty == all(state == "gone" for state in states)


TestBarrier = Barrier.TestCase
