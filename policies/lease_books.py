"""The books that every strategy keeps: generators, leases, and who waits.

Invariants:
- a generator's `promised` is the sum of the reserves of its leases, and never more than its budget;
- leases of a generator that left are gone, and only those;
- a rollout waits or holds a lease, never both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from policies.balancing import BalancerOptions, Capacity, Lease, Load, Unplaceable, Wish, reserve_for
from policies.ranking import Ranking


class GeneratorBooks:
    """One generator: what it may promise, and what it has promised to whom."""

    __slots__ = ("budget", "capacity", "chosen", "joined", "leases", "name", "promised")

    def __init__(self, capacity: Capacity, budget: int) -> None:
        self.capacity, self.budget = capacity, budget
        self.name = capacity.generator
        self.promised = 0
        self.leases: dict[str, Lease] = {}
        self.chosen = -1
        """When it was last chosen, counted in choices."""
        self.joined = 0
        """How many had joined before it, of those that are here."""

    @property
    def free(self) -> int:
        return self.budget - self.promised


class LeaseBooks:
    """Base of the strategies: a strategy says what a generator may promise (`budget_of`), what a wish has to be
    promised (`reserve_of`), who is served next (`first`: who came first, if it says nothing else), which generators it
    prefers (`rank`) and whether the wish goes to one of them now (`choose`)."""

    turn_barrier = False
    wants_progress = False

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        self.options = options
        self._epoch = epoch
        self._books: dict[str, GeneratorBooks] = {}
        self._leases: dict[str, Lease] = {}
        self._waiting: OrderedDict[str, Wish] = OrderedDict()
        """A plain dictionary takes the longer to find its first, the more have been taken from its front."""
        self._last_chosen: dict[str, int] = {}
        self._choices = 0
        self._holders: dict[int, list[GeneratorBooks]] = {}
        """Generators that could hold a wish for any generator if they were empty, by its `max_tokens`."""
        self._rankings: dict[int, Ranking[GeneratorBooks]] = {}
        """The same, the preferred ones first."""
        self._changed = True
        """Whether anything has happened since a wish was last turned away that could make room for the first one, or
        another one the first. (What rollouts tell while they run does not count: see `Predictive.progressed`.)"""

    # --- what a strategy decides -----------------------------------------------------------------

    def budget_of(self, capacity: Capacity) -> int:
        """Tokens of KV that may be promised."""
        return int(capacity.kv_tokens * (1 - self.options.headroom))

    def reserve_of(self, wish: Wish, capacity: Capacity) -> int:
        """Tokens of KV that the wish is promised."""
        return 0

    def promised_by(self, books: GeneratorBooks) -> int:
        """Tokens of KV that a generator counts as promised."""
        return books.promised

    def first(self) -> Wish:
        """Of those who wait (there are some), the one that is served next."""
        return next(iter(self._waiting.values()))

    def rank(self, books: GeneratorBooks) -> tuple[Any, ...]:
        """By which generators are preferred, the lowest first; no two may have the same."""
        raise NotImplementedError

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        """The generator that takes the wish now; None if it has to wait."""
        return next(self.best_first(wish), None)

    # --- the protocol ----------------------------------------------------------------------------

    def time_is(self, seconds: float) -> None:
        pass

    def generator_joined(self, capacity: Capacity) -> None:
        self.generator_left(capacity.generator)
        books = GeneratorBooks(capacity, self.budget_of(capacity))
        books.chosen = self._last_chosen.get(capacity.generator, -1)
        self._books[capacity.generator] = books
        self._regrouped()

    def generator_left(self, generator: str) -> tuple[str, ...]:
        books = self._books.pop(generator, None)
        if books is None:
            return ()
        self._regrouped()
        for rollout in books.leases:
            del self._leases[rollout]
        return tuple(books.leases)

    def wish(self, wish: Wish) -> None:
        if wish.rollout in self._waiting or wish.rollout in self._leases:
            return
        if self._books and not self.holders(wish):
            largest = max(min(books.budget, books.capacity.kv_tokens) for books in self._books.values())
            longest = max(books.capacity.max_sequence_tokens for books in self._books.values())
            if wish.generator and wish.generator not in self._books:
                raise Unplaceable(f"rollout {wish.rollout} is meant for {wish.generator}, which is gone")
            raise Unplaceable(
                f"rollout {wish.rollout} may need {wish.max_tokens} tokens, "
                f"but the largest generator can promise {largest} "
                f"(sequences of at most {longest}); lower the stage's max_tokens or give generators more KV cache"
            )
        self._changed |= not self._waiting
        self._waiting[wish.rollout] = wish

    def adopt(self, wish: Wish, lease: Lease) -> Lease | None:
        books = self._books.get(lease.generator)
        if books is None or books.capacity.incarnation != lease.incarnation or wish.rollout in self._leases:
            return None
        self.wish(wish)
        return self.grant(wish, books)

    def withdraw(self, rollout: str) -> None:
        self._changed |= self._waiting.pop(rollout, None) is not None

    def release(self, rollout: str, tokens: int | None = None) -> None:
        lease = self._leases.pop(rollout, None)
        if lease is not None:
            books = self._books[lease.generator]
            del books.leases[rollout]
            books.promised -= lease.reserve
            self.rank_anew(books.name)
            self._changed = True

    def progressed(self, rollout: str, tokens: int) -> None:
        pass

    def turn_wish(self, rollout: str) -> None:
        pass

    def grants(self) -> tuple[Lease, ...]:
        return tuple(self._granted())

    def turns(self) -> tuple[str, ...]:
        return ()

    def loads(self) -> tuple[Load, ...]:
        return tuple(
            Load(capacity=books.capacity, promised=self.promised_by(books), sessions=len(books.leases))
            for _, books in sorted(self._books.items())
        )

    # --- for strategies --------------------------------------------------------------------------

    def holders(self, wish: Wish) -> list[GeneratorBooks]:
        """Generators that the wish allows and that could hold it if they were empty."""
        tokens = wish.max_tokens
        if tokens not in self._holders:
            self._holders[tokens] = [books for books in self._books.values() if _could_hold(tokens, books)]
        holders = self._holders[tokens]
        return [books for books in holders if books.name == wish.generator] if wish.generator else holders

    def best_first(self, wish: Wish) -> Iterator[GeneratorBooks]:
        """The same, the preferred ones first; for `choose`, which changes nothing meanwhile."""
        if wish.generator:
            return iter(self.holders(wish))
        tokens = wish.max_tokens
        if tokens not in self._rankings:
            self._rankings[tokens] = Ranking([(books.name, books) for books in self.holders(wish)], self.rank)
        return self._rankings[tokens].best_first()

    def rank_anew(self, generator: str) -> None:
        """What its rank follows from has changed."""
        for ranking in self._rankings.values():
            ranking.change(generator)

    def _regrouped(self) -> None:
        """Generators have come or gone."""
        self._holders.clear()
        self._rankings.clear()
        for joined, books in enumerate(self._books.values()):
            books.joined = joined
        self._changed = True

    def grant(self, wish: Wish, books: GeneratorBooks) -> Lease:
        """Move a wish from the queue to a generator."""
        del self._waiting[wish.rollout]
        reserve = self.reserve_of(wish, books.capacity)
        self._last_chosen[books.name] = books.chosen = self._choices
        self._choices += 1
        lease = Lease(
            rollout=wish.rollout,
            generator=books.name,
            incarnation=books.capacity.incarnation,
            reserve=reserve,
            epoch=self._epoch,
            turn_barrier=self.turn_barrier,
            wants_progress=self.wants_progress,
        )
        books.promised += reserve
        assert reserve >= 0, (
            f"{wish.rollout} is promised {reserve} tokens of KV; a strategy's `reserve_of` is at least 0"
        )
        assert books.free >= 0, f"{books.name} has promised more KV than it may; a strategy's `choose` sees to that"
        books.leases[wish.rollout] = self._leases[wish.rollout] = lease
        self.rank_anew(books.name)
        return lease

    def _granted(self) -> Iterator[Lease]:
        while self._waiting and self._changed:
            wish = self.first()
            books = self.choose(wish)
            if books is None:
                self._changed = False
                return  # a smaller wish further back must not starve this one
            yield self.grant(wish, books)


def _could_hold(tokens: int, books: GeneratorBooks) -> bool:
    capacity = books.capacity
    room = min(books.budget, capacity.kv_tokens)
    return tokens <= capacity.max_sequence_tokens and reserve_for(tokens, capacity) <= room
