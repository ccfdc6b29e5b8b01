"""The strategies that need no prediction, and `make_strategy`.

Invariants, beside those of `policies.balancing`:
- all of these serve first come, first served; ties go to the generator chosen least recently, so that a burst spreads
  instead of herding.
"""

from __future__ import annotations

from typing import get_args

from policies.balancing import BalancerOptions, Capacity, Lease, Strategy, StrategyName, Wish, reserve_for
from policies.lease_books import GeneratorBooks, LeaseBooks
from policies.predictive_balancing import Predictive


class WorstCase(LeaseBooks):
    """Reserves the most that each rollout could need (the paper's K per GPU).

    Nothing is ever preempted, at the price of KV that stays idle.
    """

    def reserve_of(self, wish: Wish, capacity: Capacity) -> int:
        return reserve_for(wish.max_tokens, capacity)

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        super().__init__(options, epoch)
        self._by_name: dict[str, int] = {}
        """Places in the alphabet."""

    def generator_joined(self, capacity: Capacity) -> None:
        super().generator_joined(capacity)
        self._by_name = {name: place for place, name in enumerate(sorted(self._books))}

    def rank(self, books: GeneratorBooks) -> tuple[int, int, int]:
        return -books.free, books.chosen, -self._by_name[books.name]

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        for books in self.best_first(wish):
            if books.free < wish.max_tokens:
                break  # and so it is with all that follow
            if self.reserve_of(wish, books.capacity) <= books.free:
                return books
        return None


class Oversubscribed(WorstCase):
    """Promises capacity / `coefficient`: as `worst_case`, on the bet that few rollouts become as long as they may.

    Seen in the history of a public fork of verl (J-shang/verl, commit 1bdde559), the paper's scheduler before release.
    """

    def budget_of(self, capacity: Capacity) -> int:
        return int(super().budget_of(capacity) / self.options.coefficient)


class RoundRobin(LeaseBooks):
    """Starts every rollout at once, on the generator whose turn it is. The engine preempts what does not fit."""

    def rank(self, books: GeneratorBooks) -> tuple[int, str]:
        return books.chosen, books.name


class LeastSessions(LeaseBooks):
    """Starts every rollout at once, on the generator with the fewest rollouts, those in tool calls included."""

    def rank(self, books: GeneratorBooks) -> tuple[int, int, str]:
        return len(books.leases), books.chosen, books.name


class StaticAsync(LeaseBooks):
    """Static batching: a generator takes `batch` rollouts, and the next ones when all of these are done."""

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        super().__init__(options, epoch)
        self._taken: dict[str, int] = {}
        """Rollouts of each generator's batch so far."""

    def generator_joined(self, capacity: Capacity) -> None:
        super().generator_joined(capacity)
        self._taken[capacity.generator] = 0

    def release(self, rollout: str, tokens: int | None = None) -> None:
        lease = self._leases.get(rollout)
        super().release(rollout, tokens)
        if lease is not None and not self._books[lease.generator].leases:
            self._taken[lease.generator] = 0

    def rank(self, books: GeneratorBooks) -> tuple[int, int, str]:
        return self._taken[books.name], books.chosen, books.name

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        best = super().choose(wish)
        return best if best is not None and self._taken[best.name] < self.options.batch else None

    def grant(self, wish: Wish, books: GeneratorBooks) -> Lease:
        self._taken[books.name] += 1
        return super().grant(wish, books)


class Static(StaticAsync):
    """Static batching with a barrier at each turn: the paper's baseline (section 3.2).

    A generator's rollouts begin their next turn together, when all of them have their tool results: short turns wait
    for the longest one. The first turn begins at once.
    """

    turn_barrier = True

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        super().__init__(options, epoch)
        self._ready: dict[str, dict[str, None]] = {}
        """Rollouts at the barrier, by generator, in order of arrival."""
        self._came_nearer: dict[str, None] = {}
        """Generators of which more are at the barrier, or fewer are awaited, than when turns were last begun."""

    def generator_left(self, generator: str) -> tuple[str, ...]:
        self._ready.pop(generator, None)
        self._came_nearer.pop(generator, None)
        return super().generator_left(generator)

    def release(self, rollout: str, tokens: int | None = None) -> None:
        lease = self._leases.get(rollout)
        if lease is not None:
            self._ready.get(lease.generator, {}).pop(rollout, None)
            self._came_nearer[lease.generator] = None
        super().release(rollout, tokens)

    def turn_wish(self, rollout: str) -> None:
        lease = self._leases.get(rollout)
        if lease is not None:
            self._ready.setdefault(lease.generator, {})[rollout] = None
            self._came_nearer[lease.generator] = None

    def turns(self) -> tuple[str, ...]:
        if not self._came_nearer:
            return ()
        nearer, self._came_nearer = self._came_nearer, {}
        begin: list[str] = []
        for name in nearer if len(nearer) == 1 else [name for name in self._ready if name in nearer]:
            ready = self._ready.get(name)
            if ready and len(ready) == len(self._books[name].leases):
                begin += ready
                ready.clear()
        return tuple(begin)


_STRATEGIES: dict[StrategyName, type[LeaseBooks]] = {
    "static": Static,
    "static_async": StaticAsync,
    "round_robin": RoundRobin,
    "least_sessions": LeastSessions,
    "worst_case": WorstCase,
    "oversubscribed": Oversubscribed,
    "predictive": Predictive,
}
assert _STRATEGIES.keys() == set(get_args(StrategyName)), "StrategyName and _STRATEGIES must name the same strategies"


def make_strategy(options: BalancerOptions, epoch: int = 0) -> Strategy:
    """The strategy that a recipe names."""
    return _STRATEGIES[options.strategy](options, epoch)
