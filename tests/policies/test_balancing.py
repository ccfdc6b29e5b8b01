"""Strategies never promise what a generator does not have, and lose no wish."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from policies.balancing import BalancerOptions, Capacity, Lease, Unplaceable, Wish, WorstCase, make_strategy


def capacity(name: str, tokens: int = 1024, incarnation: int = 0) -> Capacity:
    return Capacity(generator=name, incarnation=incarnation, kv_tokens=tokens, block_tokens=32, max_sequence_tokens=512)


def wish(rollout: str, tokens: int = 100) -> Wish:
    return Wish(rollout=rollout, prompt_tokens=10, max_tokens=tokens)


def strategy(*capacities: Capacity, headroom: float = 0.0) -> WorstCase:
    made = WorstCase(BalancerOptions(headroom=headroom))
    for each in capacities:
        made.generator_joined(each)
    return made


def test_reserves_are_whole_blocks() -> None:
    balancing = strategy(capacity("g"))
    balancing.wish(wish("r", 33))
    assert [lease.reserve for lease in balancing.grants()] == [64]


def test_a_burst_spreads_over_equal_generators() -> None:
    balancing = strategy(capacity("g0"), capacity("g1"))
    for index in range(8):
        balancing.wish(wish(f"r{index}"))
    placed = [lease.generator for lease in balancing.grants()]
    assert placed.count("g0") == placed.count("g1") == 4


def test_a_wish_waits_until_a_lease_comes_back() -> None:
    balancing = strategy(capacity("g", 256))
    for name in ("a", "b", "c"):
        balancing.wish(wish(name, 128))
    assert [lease.rollout for lease in balancing.grants()] == ["a", "b"]
    balancing.release("a")
    balancing.release("a")
    assert [lease.rollout for lease in balancing.grants()] == ["c"]


def test_a_small_wish_does_not_overtake_a_large_one() -> None:
    balancing = strategy(capacity("g", 512))
    balancing.wish(wish("first", 256))
    balancing.wish(wish("large", 512))
    balancing.wish(wish("small", 32))
    assert [lease.rollout for lease in balancing.grants()] == ["first"]
    balancing.release("first")
    assert [lease.rollout for lease in balancing.grants()] == ["large"]


def test_a_wish_that_can_never_fit_is_refused_with_the_numbers() -> None:
    balancing = strategy(capacity("g", 256))
    with pytest.raises(ValueError, match=r"may need 300 tokens, but the largest generator can promise 256"):
        balancing.wish(wish("r", 300))


def test_headroom_is_never_promised() -> None:
    balancing = strategy(capacity("g", 1024), headroom=0.5)
    for index in range(20):
        balancing.wish(wish(f"r{index}", 128))
    assert sum(lease.reserve for lease in balancing.grants()) == 512


def test_a_new_incarnation_holds_nothing_of_the_old_one() -> None:
    balancing = strategy(capacity("g", 256))
    balancing.wish(wish("a", 256))
    balancing.grants()
    balancing.generator_joined(capacity("g", 256, incarnation=1))
    balancing.wish(wish("b", 256))
    assert [(lease.rollout, lease.incarnation) for lease in balancing.grants()] == [("b", 1)]


def test_wishes_wait_for_the_first_generator() -> None:
    balancing = make_strategy(BalancerOptions(), epoch=4)
    balancing.wish(wish("early"))
    assert balancing.grants() == ()
    balancing.generator_joined(capacity("g"))
    assert [(lease.rollout, lease.epoch) for lease in balancing.grants()] == [("early", 4)]


class BalancerBooks(RuleBasedStateMachine):
    """Any order of joins, wishes, releases and deaths keeps the books straight."""

    rollouts = Bundle("rollouts")

    def __init__(self) -> None:
        super().__init__()
        self.balancing = WorstCase(BalancerOptions())
        self.leases: dict[str, Lease] = {}
        self.waiting: set[str] = set()
        self.incarnations = {"g0": 0, "g1": 0, "g2": 0}
        self.alive: set[str] = set()
        self.count = 0

    def take_grants(self) -> None:
        for lease in self.balancing.grants():
            assert lease.rollout in self.waiting, "granted twice, or never asked for"
            assert lease.generator in self.alive
            assert lease.incarnation == self.incarnations[lease.generator]
            self.waiting.remove(lease.rollout)
            self.leases[lease.rollout] = lease

    @rule(name=st.sampled_from(["g0", "g1", "g2"]), tokens=st.sampled_from([512, 640, 1024]))
    def join(self, name: str, tokens: int) -> None:
        self.incarnations[name] += 1
        self.leases = {rollout: lease for rollout, lease in self.leases.items() if lease.generator != name}
        self.alive.add(name)
        self.balancing.generator_joined(capacity(name, tokens, self.incarnations[name]))
        self.take_grants()

    @rule(name=st.sampled_from(["g0", "g1", "g2"]))
    def leave(self, name: str) -> None:
        ended = set(self.balancing.generator_left(name))
        assert ended == {rollout for rollout, lease in self.leases.items() if lease.generator == name}
        self.leases = {rollout: lease for rollout, lease in self.leases.items() if rollout not in ended}
        self.alive.discard(name)
        self.take_grants()

    @rule(target=rollouts, tokens=st.integers(1, 512))
    def ask(self, tokens: int) -> str:
        self.count += 1
        name = f"r{self.count}"
        self.balancing.wish(wish(name, tokens))
        self.waiting.add(name)
        self.take_grants()
        return name

    @rule(name=rollouts)
    def ask_again(self, name: str) -> None:
        if name in self.leases or name in self.waiting:
            self.balancing.wish(wish(name, 32))
            self.take_grants()

    @rule(name=consumes(rollouts))
    def give_back(self, name: str) -> None:
        self.balancing.withdraw(name)
        self.balancing.release(name)
        self.waiting.discard(name)
        self.leases.pop(name, None)
        self.take_grants()

    @invariant()
    def promises_equal_leases_and_fit(self) -> None:
        for load in self.balancing.loads():
            held = [lease for lease in self.leases.values() if lease.generator == load.capacity.generator]
            assert load.promised == sum(lease.reserve for lease in held) <= load.capacity.kv_tokens
            assert load.sessions == len(held)

    @invariant()
    def nobody_waits_beside_an_idle_generator(self) -> None:
        if self.waiting and self.alive:
            assert all(load.sessions for load in self.balancing.loads()), "an idle generator, and somebody waits"


TestBalancerBooks = BalancerBooks.TestCase
TestBalancerBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_refusal_is_typed() -> None:
    with pytest.raises(Unplaceable):
        strategy(capacity("g", 64)).wish(wish("r", 65))
