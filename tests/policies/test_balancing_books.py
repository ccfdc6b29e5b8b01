"""Whatever happens in whatever order: strategies lose no wish, invent no lease, and keep their promises."""

from __future__ import annotations

import copy
from collections import Counter
from typing import ClassVar, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from policies.balancing import BalancerOptions, Capacity, Lease, Strategy, StrategyName, Wish
from policies.balancing_strategies import make_strategy
from policies.lease_books import LeaseBooks
from policies.length_prediction import BUCKETS
from policies.predictive_balancing import Predictive

NAMES = ("g0", "g1", "g2")
LONGEST = 512


class Books(RuleBasedStateMachine):
    """Joins, wishes, turns, releases and deaths against a plain account of who should hold what."""

    strategy: ClassVar[StrategyName]
    share: ClassVar[float | None] = None
    """Of a generator's KV that may be promised in reserves; None: the strategy promises no reserves."""
    first_come_first_served = True
    rollouts = Bundle("rollouts")

    def __init__(self) -> None:
        super().__init__()
        self.balancing = self.books_of(0)
        self.epoch = 0
        self.wishes: dict[str, Wish] = {}
        self.leases: dict[str, Lease] = {}
        self.waiting: dict[str, None] = {}
        self.at_barrier: dict[str, None] = {}
        self.lengths: dict[str, int] = {}
        self.incarnations: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.kv: dict[str, int] = {}
        self.count = 0
        self.time = 0.0

    def books_of(self, epoch: int) -> Strategy:
        return make_strategy(BalancerOptions(strategy=self.strategy, batch=3, coefficient=0.5), epoch)

    def capacity_of(self, name: str) -> Capacity:
        return Capacity(
            generator=name,
            incarnation=self.incarnations[name],
            kv_tokens=self.kv[name],
            block_tokens=32,
            max_sequence_tokens=LONGEST,
        )

    def settle(self) -> None:
        granted = set()
        for lease in self.balancing.grants():
            assert lease.rollout in self.waiting, "granted twice, or never asked for"
            assert lease.generator in self.kv and lease.incarnation == self.incarnations[lease.generator]
            if self.first_come_first_served:
                assert lease.rollout == next(iter(self.waiting)), "overtaken"
            del self.waiting[lease.rollout]
            self.leases[lease.rollout] = lease
            granted.add(lease.generator)
        for rollout in self.balancing.turns():
            assert rollout in self.at_barrier, "nobody asked for this turn"
            del self.at_barrier[rollout]
        self.after_grants(granted)

    def after_grants(self, granted: set[str]) -> None:
        pass

    def forget(self, rollout: str) -> None:
        for books in (self.leases, self.waiting, self.at_barrier):
            books.pop(rollout, None)

    @rule(name=st.sampled_from(NAMES), tokens=st.sampled_from([LONGEST, 640, 2048]))
    def join(self, name: str, tokens: int) -> None:
        self.incarnations[name] += 1
        for rollout in [rollout for rollout, lease in self.leases.items() if lease.generator == name]:
            self.forget(rollout)
        self.kv[name] = tokens
        self.balancing.generator_joined(self.capacity_of(name))
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        held = {rollout for rollout, lease in self.leases.items() if lease.generator == name}
        assert set(self.balancing.generator_left(name)) == held
        for rollout in held:
            self.forget(rollout)
        self.kv.pop(name, None)
        self.settle()

    @rule(target=rollouts, tokens=st.integers(2, LONGEST), group=st.sampled_from(["", "a", "b"]))
    def ask(self, tokens: int, group: str) -> str:
        self.count += 1
        name = f"r{self.count}"
        self.lengths[name] = max(1, tokens // 4)
        self.waiting[name] = None
        self.wishes[name] = Wish(rollout=name, prompt_tokens=self.lengths[name], max_tokens=tokens, group=group)
        self.balancing.wish(self.wishes[name])
        self.settle()
        return name

    @rule(lost=st.booleans())
    def make_books_anew(self, lost: bool) -> None:
        """As a balancer does that was started again; if one was `lost`, a generator has died with it."""
        self.epoch += 1
        self.balancing = self.books_of(self.epoch)
        self.balancing.time_is(self.time)
        gone = next(iter(self.kv), None) if lost else None
        if gone is not None:
            del self.kv[gone]
        for name in self.kv:
            self.balancing.generator_joined(self.capacity_of(name))
        for rollout, lease in list(self.leases.items()):
            adopted = self.balancing.adopt(self.wishes[rollout], lease)
            if lease.generator == gone:
                assert adopted is None, "nobody is there to hold it"
                self.forget(rollout)
            else:
                assert adopted == lease.model_copy(update={"epoch": self.epoch})
                self.balancing.progressed(rollout, self.lengths[rollout])
        for rollout in self.at_barrier:
            self.balancing.turn_wish(rollout)
        for rollout in self.waiting:
            self.balancing.wish(self.wishes[rollout])
        self.settle()

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds
        self.balancing.time_is(self.time)
        self.settle()

    @rule(name=rollouts)
    def ask_again(self, name: str) -> None:
        if name in self.leases or name in self.waiting:
            self.balancing.wish(Wish(rollout=name, prompt_tokens=1, max_tokens=32))
            self.settle()

    @rule(name=rollouts, grown=st.integers(0, 200))
    def end_turn(self, name: str, grown: int) -> None:
        if name in self.leases and name not in self.at_barrier:
            self.lengths[name] = min(LONGEST, self.lengths[name] + grown)
            self.balancing.progressed(name, self.lengths[name])
            if self.leases[name].turn_barrier:
                self.at_barrier[name] = None
                self.balancing.turn_wish(name)
            self.settle()

    @rule(name=consumes(rollouts), finished=st.booleans())
    def give_back(self, name: str, finished: bool) -> None:
        self.balancing.withdraw(name)
        self.balancing.release(name, self.lengths[name] if finished else None)
        self.balancing.release(name)
        self.forget(name)
        self.settle()

    @invariant()
    def the_books_agree(self) -> None:
        loads = {load.capacity.generator: load for load in self.balancing.loads()}
        assert loads.keys() == self.kv.keys()
        for name, load in loads.items():
            held = [lease for lease in self.leases.values() if lease.generator == name]
            assert load.sessions == len(held)
            if self.share is not None:
                assert load.promised == sum(lease.reserve for lease in held) <= self.share * self.kv[name]

    @invariant()
    def nobody_waits_beside_an_idle_generator(self) -> None:
        if self.waiting and self.kv:
            assert all(load.sessions for load in self.balancing.loads()), "an idle generator, and somebody waits"

    @invariant()
    def nobody_waits_who_could_be_granted_now(self) -> None:
        if not self.first_come_first_served:
            return  # it chooses when to look at its predictions
        looks_again = copy.deepcopy(self.balancing)
        assert isinstance(looks_again, LeaseBooks)
        looks_again._changed = True  # even if it does not know why it should
        assert not looks_again.grants(), "it did not look when it should have"

    @invariant()
    def a_barrier_keeps_nobody_when_all_have_arrived(self) -> None:
        for name in self.kv:
            held = {rollout for rollout, lease in self.leases.items() if lease.generator == name}
            assert not held or not held <= self.at_barrier.keys()


class WorstCaseBooks(Books):
    strategy = "worst_case"
    share = 1.0


class OversubscribedBooks(Books):
    strategy = "oversubscribed"
    share = 2.0


class RoundRobinBooks(Books):
    strategy = "round_robin"


class LeastSessionsBooks(Books):
    strategy = "least_sessions"


class StaticBooks(Books):
    strategy = "static"


class StaticAsyncBooks(Books):
    strategy = "static_async"


class PredictiveBooks(Books):
    strategy = "predictive"
    first_come_first_served = False

    def after_grants(self, granted: set[str]) -> None:
        for load in self.balancing.loads():
            if load.capacity.generator in granted:
                assert load.sessions == 1 or load.promised <= self.kv[load.capacity.generator]

    @invariant()
    def it_has_learned_where_each_rollout_is(self) -> None:
        assert isinstance(self.balancing, Predictive)
        lengths = self.balancing._lengths
        if lengths is not None:
            here = Counter(lengths.bucket(self.lengths[rollout]) for rollout in self.leases)
            assert [here[bucket] for bucket in range(BUCKETS)] == lengths._here


def test_every_strategy_is_put_to_the_test() -> None:
    assert {books.strategy for books in Books.__subclasses__()} == set(get_args(StrategyName))


WITH_EFFORT = settings(max_examples=40, stateful_step_count=40, deadline=None)

TestWorstCaseBooks = WorstCaseBooks.TestCase
TestOversubscribedBooks = OversubscribedBooks.TestCase
TestRoundRobinBooks = RoundRobinBooks.TestCase
TestLeastSessionsBooks = LeastSessionsBooks.TestCase
TestStaticBooks = StaticBooks.TestCase
TestStaticAsyncBooks = StaticAsyncBooks.TestCase
TestPredictiveBooks = PredictiveBooks.TestCase
for case in (
    TestWorstCaseBooks,
    TestOversubscribedBooks,
    TestRoundRobinBooks,
    TestLeastSessionsBooks,
    TestStaticBooks,
    TestStaticAsyncBooks,
    TestPredictiveBooks,
):
    case.settings = WITH_EFFORT
del case
