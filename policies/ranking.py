"""Generators in the order in which a strategy prefers them, kept up to date as their books change.

Invariants:
- what comes first has the lowest rank of all, as ranks are now;
- a change costs nothing until somebody asks, and then the logarithm of the number of generators: of some hundreds, a
  large run would otherwise look at each whenever a rollout ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Ranking[Generator]:
    """See the module's docstring.

    Args:
        generators: by name.
        rank: lowest first; no two generators may have the same.
    """

    def __init__(
        self, generators: Iterable[tuple[str, Generator]], rank: Callable[[Generator], tuple[Any, ...]]
    ) -> None:
        self._generators = dict(generators)
        self._rank = rank
        self._changed = dict.fromkeys(self._generators)
        self._heap: list[tuple[tuple[Any, ...], int, str]] = []
        """Rank, number of the entry, name."""
        self._latest: dict[str, int] = {}
        """The number of each generator's valid entry."""
        self._entries = 0

    def change(self, name: str) -> None:
        """A generator's rank may be another one now; names that are not ranked are ignored."""
        if name in self._generators:
            self._changed[name] = None

    def best_first(self) -> Iterator[Generator]:
        """The generators by rank. Nothing may change while the iterator is in use."""
        self._bring_up_to_date()
        heap, aside = self._heap, []
        try:
            while heap:
                _, number, name = heap[0]
                if self._latest[name] == number:
                    yield self._generators[name]
                    aside.append(heapq.heappop(heap))
                else:
                    heapq.heappop(heap)
        finally:
            for entry in aside:
                heapq.heappush(heap, entry)

    def _bring_up_to_date(self) -> None:
        if len(self._heap) > 4 * len(self._generators):
            self._heap.clear()
            self._changed = dict.fromkeys(self._generators)
        for name in self._changed:
            self._entries += 1
            self._latest[name] = self._entries
            heapq.heappush(self._heap, (self._rank(self._generators[name]), self._entries, name))
        self._changed.clear()
