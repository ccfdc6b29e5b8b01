"""Rollouts in fixed waves: so that an engine sees the same batches whenever a step is repeated.

What a sequence's logits are depends, in their last bits, on the sequences that are computed beside it. In a
deterministic run a step's rollouts are therefore dealt to generators in advance, a wave at a time, and a wave's
rollouts begin each turn together, in order of their seats, when all of them are ready.

Invariants:
- the seats of a step depend on its rollouts and the generators' capacities alone; a wave fits each generator's budget;
- a turn begins when every rollout that has not left waits for it; nobody waits for a rollout that has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.balancing import Capacity, reserve_for
from policies.trajectory import Record


class Seat(Record):
    """A rollout's place in a wave."""

    wave: str
    generator: str
    index: int
    """Among the wave's rollouts on this generator."""
    size: int
    """How many these are."""


def deal(
    name: str, rollouts: int, max_tokens: int, capacities: Sequence[Capacity], headroom: float
) -> list[list[Seat]]:
    """Seats for `rollouts` rollouts, in order, wave by wave.

    Args:
        name: of the step (and round); waves are numbered under it.
        max_tokens: what each rollout may come to.
        headroom: share of a generator's KV that is not used, as the balancer has it.

    Raises `ValueError` if there are no generators, or one can't hold a single rollout.
    """
    if not capacities:
        raise ValueError("no generator can be reached; a wave needs at least one")
    seats = [int(each.kv_tokens * (1 - headroom)) // reserve_for(max_tokens, each) for each in capacities]
    for each, room in zip(capacities, seats, strict=True):
        if room < 1:
            raise ValueError(
                f"{each.generator} has {each.kv_tokens} tokens of KV cache, too few for a rollout of {max_tokens}; "
                "raise generators.engine.kv_tokens or lower the stage's max_tokens"
            )
    width = min(seats) * len(capacities)
    waves = []
    for number, first in enumerate(range(0, rollouts, width)):
        members = range(min(width, rollouts - first))
        count = len(capacities)
        waves.append(
            [
                Seat(
                    wave=f"{name}/wave-{number}",
                    generator=capacities[member % count].generator,
                    index=member // count,
                    size=len(members[member % count :: count]),
                )
                for member in members
            ]
        )
    return waves


class WaveBarrier:
    """Which rollouts of one wave, on one generator, wait for their next turn.

    A member is known by its lease: another attempt at the same seat takes the place of the one before.
    """

    def __init__(self, size: int) -> None:
        self._leases: dict[int, str] = {}
        self._waiting: dict[int, str] = {}
        self._gone: dict[int, None] = {}
        self._size = size

    @property
    def empty(self) -> bool:
        """Whether all have left."""
        return len(self._gone) == self._size

    def arrive(self, index: int, lease: str) -> tuple[str, ...]:
        """A member is ready for its next turn. Returns the leases whose turns begin now, in order of their seats."""
        assert 0 <= index < self._size, f"seat {index} in a wave of {self._size}"
        self._gone.pop(index, None)
        self._leases[index] = self._waiting[index] = lease
        return self._begun()

    def leave(self, index: int, lease: str | None) -> tuple[str, ...]:
        """A member takes no more turns; None: whoever sits there. Returns the leases whose turns begin now."""
        if lease is None or self._leases.get(index) == lease:
            self._gone[index] = None
            self._waiting.pop(index, None)
        return self._begun()

    def _begun(self) -> tuple[str, ...]:
        if not self._waiting or len(self._waiting) + len(self._gone) < self._size:
            return ()
        begun = tuple(self._waiting[index] for index in sorted(self._waiting))
        self._waiting.clear()
        return begun
