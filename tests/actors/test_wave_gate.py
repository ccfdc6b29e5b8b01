"""Turns of a wave go on together, in order of their seats, whoever came last."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from actors.wave_gate import WaveGate
from policies.waves import Seat


def seat(index: int, size: int = 3) -> Seat:
    return Seat(wave="rl/0/0/wave-0", generator="generator-0", index=index, size=size)


class Players:
    """Members that take turns, and say when a turn of theirs begins."""

    def __init__(self) -> None:
        self.gate, self.begun = WaveGate(), list[int]()

    async def turn(self, index: int, lease: str = "") -> bool:
        began = await self.gate.turn_begins(seat(index), lease or f"lease-{index}")
        if began:
            self.begun.append(index)
        return began


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_turns_begin_when_all_are_there_in_order_of_seats(order: tuple[int, ...]) -> None:
    players, tasks = Players(), []
    for index in order:
        assert players.begun == []
        tasks.append(asyncio.ensure_future(players.turn(index)))
        await settle()
    assert players.begun == [0, 1, 2]
    assert await asyncio.gather(*tasks) == [True] * 3


async def test_nobody_waits_for_one_that_has_left_or_was_given_up() -> None:
    players = Players()
    first = asyncio.gather(*[players.turn(index) for index in (2, 0, 1)])
    await settle()
    assert await first == [True] * 3 and players.begun == [0, 1, 2]
    players.gate.left("lease-1")
    again = asyncio.ensure_future(players.turn(2))
    await settle()
    assert not again.done()
    players.gate.given_up(seat(0))
    await settle()
    assert await again


async def test_one_that_leaves_while_it_waits_is_told_so() -> None:
    players = Players()
    waiting = [asyncio.ensure_future(players.turn(index)) for index in (0, 1)]
    await settle()
    players.gate.left("lease-0")
    assert await waiting[0] is False
    other = asyncio.ensure_future(players.turn(2))
    assert await asyncio.gather(waiting[1], other) == [True, True]


async def test_another_attempt_takes_the_seat_and_the_old_lease_ends_without_effect() -> None:
    players = Players()
    old = asyncio.ensure_future(players.turn(0))
    await settle()
    new = asyncio.ensure_future(players.turn(0, "lease-0-again"))
    await settle()
    players.gate.left("lease-0")
    assert await old is False
    rest = [asyncio.ensure_future(players.turn(index)) for index in (1, 2)]
    assert await asyncio.gather(new, *rest) == [True] * 3
    assert players.begun == [0, 1, 2]
