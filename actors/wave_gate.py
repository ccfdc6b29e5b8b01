"""Where turns of a deterministic run wait for those of the other rollouts of their wave (`policies.waves`).

Invariant: turns that begin together go on in order of their seats, with nothing in between: their requests reach the
engine side by side.
"""

from __future__ import annotations

import asyncio

from policies.waves import Seat, WaveBarrier


class WaveGate:
    """The waves of one generator."""

    def __init__(self) -> None:
        self._barriers: dict[str, WaveBarrier] = {}
        self._seats: dict[str, Seat] = {}
        """By the lease of whoever sits there."""
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    async def turn_begins(self, seat: Seat, lease: str) -> bool:
        """Wait until the wave's next turn begins; whether it does for this lease, which may have ended meanwhile."""
        self._seats[lease] = seat
        waiting = self._waiting[lease] = asyncio.get_running_loop().create_future()
        barrier = self._barriers.setdefault(seat.wave, WaveBarrier(seat.size))
        self._begin_soon(barrier.arrive(seat.index, lease))
        return await waiting

    def left(self, lease: str) -> None:
        """A lease has ended."""
        seat = self._seats.pop(lease, None)
        if seat is not None:
            self._leave(seat, lease)

    def given_up(self, seat: Seat) -> None:
        """Nobody will sit there any more."""
        self._barriers.setdefault(seat.wave, WaveBarrier(seat.size))
        self._leave(seat, None)

    def _leave(self, seat: Seat, lease: str | None) -> None:
        waiting = self._waiting.pop(lease or "", None)
        if waiting is not None:
            waiting.set_result(False)
        barrier = self._barriers.get(seat.wave)
        if barrier is None:
            return
        self._begin_soon(barrier.leave(seat.index, lease))
        if barrier.empty:
            del self._barriers[seat.wave]

    def _begin_soon(self, leases: tuple[str, ...]) -> None:
        # Not now: whoever came last does not await its future yet, and would go on before all others.
        if leases:
            asyncio.get_running_loop().call_soon(self._begin, leases)

    def _begin(self, leases: tuple[str, ...]) -> None:
        for lease in leases:
            waiting = self._waiting.pop(lease, None)
            if waiting is not None:  # else it has left meanwhile
                waiting.set_result(True)
