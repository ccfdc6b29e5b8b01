"""A clairvoyant to measure strategies by: it knows every length, takes the longest rollouts first, and as many as will
fit at every moment of their growth, each on the engine with the most room.

It is no bound: longest first is a good order, not the best one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from policies.balancing import BalancerOptions, Capacity, Lease, Wish
from policies.lease_books import GeneratorBooks, LeaseBooks

BUCKETS = 128


class Oracle(LeaseBooks):
    """See the module's docstring.

    Args:
        lengths: tokens that each rollout will come to.
        longest: tokens that no sequence exceeds.
    """

    wants_progress = True

    def __init__(self, options: BalancerOptions, lengths: dict[str, int], longest: int) -> None:
        super().__init__(options)
        self._lengths, self._width = lengths, -(-longest // BUCKETS)
        self._demands: dict[str, np.ndarray] = {}
        self._now: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def generator_joined(self, capacity: Capacity) -> None:
        super().generator_joined(capacity)
        self._demands[capacity.generator] = np.zeros(BUCKETS)

    def wish(self, wish: Wish) -> None:
        super().wish(wish)
        heapq.heappush(self._order, (-self._lengths[wish.rollout], wish.rollout))

    def progressed(self, rollout: str, tokens: int) -> None:
        demand = self._demands[self._leases[rollout].generator]
        demand -= self._curve(rollout)
        self._now[rollout] = tokens
        demand += self._curve(rollout)

    def release(self, rollout: str, tokens: int | None = None) -> None:
        self._demands[self._leases[rollout].generator] -= self._curve(rollout)
        super().release(rollout, tokens)

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        self._now[wish.rollout] = wish.prompt_tokens
        curve = self._curve(wish.rollout)
        best = min(self.holders(wish), key=lambda books: (float(self._demands[books.name].max()), books.chosen))
        fits = float((self._demands[best.name] + curve).max()) <= best.budget
        return best if fits or not best.leases else None

    def grant(self, wish: Wish, books: GeneratorBooks) -> Lease:
        self._demands[books.name] += self._curve(wish.rollout)
        return super().grant(wish, books)

    def _granted(self) -> Iterator[Lease]:
        while self._waiting:
            wish = self._waiting[self._order[0][1]]
            books = self.choose(wish)
            if books is None:
                return
            heapq.heappop(self._order)
            yield self.grant(wish, books)

    def _curve(self, rollout: str) -> np.ndarray:
        """Tokens that the rollout holds, by growth from now."""
        growth = np.arange(1, BUCKETS + 1) * self._width + self._now[rollout]
        end = self._lengths[rollout]
        return np.where(growth - self._width < end, np.minimum(growth, end), 0)
