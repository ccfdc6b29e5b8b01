"""What each strategy does, by example."""

from typing import get_args

import pytest

from policies.balancing import (
    BalancerOptions,
    Capacity,
    Strategy,
    StrategyName,
    Unplaceable,
    Wish,
    longest_lease,
)
from policies.balancing_strategies import RoundRobin, WorstCase, make_strategy


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


@pytest.mark.parametrize("name", ["worst_case", "least_sessions", "round_robin", "static", "predictive"])
def test_a_wish_for_one_generator_goes_there_or_is_refused(name: StrategyName) -> None:
    balancing = make_strategy(BalancerOptions(strategy=name))
    for generator in ("g0", "g1"):
        balancing.generator_joined(capacity(generator))
    for index in range(4):
        balancing.wish(wish(f"r{index}").model_copy(update={"generator": "g1"}))
    assert {lease.generator for lease in balancing.grants()} == {"g1"}
    with pytest.raises(Unplaceable, match="is meant for g2, which is gone"):
        balancing.wish(wish("lost").model_copy(update={"generator": "g2"}))


def test_a_small_wish_does_not_overtake_a_large_one() -> None:
    balancing = strategy(capacity("g", 512))
    balancing.wish(wish("first", 256))
    balancing.wish(wish("large", 512))
    balancing.wish(wish("small", 32))
    assert [lease.rollout for lease in balancing.grants()] == ["first"]
    balancing.release("first")
    assert [lease.rollout for lease in balancing.grants()] == ["large"]


def test_when_the_large_one_withdraws_the_small_one_is_next() -> None:
    balancing = strategy(capacity("g", 512))
    balancing.wish(wish("first", 256))
    balancing.wish(wish("large", 512))
    balancing.wish(wish("small", 32))
    assert [lease.rollout for lease in balancing.grants()] == ["first"]
    balancing.withdraw("large")
    assert [lease.rollout for lease in balancing.grants()] == ["small"]


def test_a_wish_that_can_never_fit_is_refused_with_the_numbers() -> None:
    balancing = strategy(capacity("g", 256))
    with pytest.raises(ValueError, match=r"may need 300 tokens, but the largest generator can promise 256"):
        balancing.wish(wish("r", 300))


def test_headroom_is_never_promised() -> None:
    balancing = strategy(capacity("g", 1024), headroom=0.5)
    for index in range(20):
        balancing.wish(wish(f"r{index}", 128))
    assert sum(lease.reserve for lease in balancing.grants()) == 512


@pytest.mark.parametrize("name", get_args(StrategyName))
@pytest.mark.parametrize("headroom", [0.0, 0.25, 0.875])
def test_the_longest_lease_is_the_longest_wish_that_a_strategy_takes(name: StrategyName, headroom: float) -> None:
    options = BalancerOptions(strategy=name, headroom=headroom, coefficient=0.5)
    longest = longest_lease(options, kv_tokens=500, block_tokens=32)
    holder = capacity("a", tokens=512).model_copy(update={"max_sequence_tokens": 4096})
    named(name, holder, headroom=headroom, coefficient=0.5).wish(wish("r", longest))
    with pytest.raises(Unplaceable):
        named(name, holder, headroom=headroom, coefficient=0.5).wish(wish("r", longest + 1))


def test_a_new_incarnation_holds_nothing_of_the_old_one() -> None:
    balancing = strategy(capacity("g", 256))
    balancing.wish(wish("a", 256))
    balancing.grants()
    balancing.generator_joined(capacity("g", 256, incarnation=1))
    balancing.wish(wish("b", 256))
    assert [(lease.rollout, lease.incarnation) for lease in balancing.grants()] == [("b", 1)]


def test_wishes_wait_for_the_first_generator() -> None:
    balancing = make_strategy(BalancerOptions(strategy="worst_case"), epoch=4)
    balancing.wish(wish("early"))
    assert balancing.grants() == ()
    balancing.generator_joined(capacity("g"))
    assert [(lease.rollout, lease.epoch) for lease in balancing.grants()] == [("early", 4)]


class PromisesLessThanNothing(RoundRobin):
    def reserve_of(self, wish: Wish, capacity: Capacity) -> int:
        return -32


class PromisesWhatIsNotThere(RoundRobin):
    def reserve_of(self, wish: Wish, capacity: Capacity) -> int:
        return 192


@pytest.mark.parametrize(
    ("mistaken", "said"),
    [(PromisesLessThanNothing, "promised -32 tokens"), (PromisesWhatIsNotThere, "promised more KV")],
)
def test_a_strategy_that_keeps_wrong_books_is_stopped_by_them(mistaken: type[RoundRobin], said: str) -> None:
    balancing = mistaken(BalancerOptions())
    balancing.generator_joined(capacity("g", 256))
    balancing.wish(wish("a"))
    balancing.wish(wish("b"))
    with pytest.raises(AssertionError, match=said):
        balancing.grants()


def test_refusal_is_typed() -> None:
    with pytest.raises(Unplaceable):
        strategy(capacity("g", 64)).wish(wish("r", 65))


def named(name: StrategyName, *capacities: Capacity, **options: float) -> Strategy:
    made = make_strategy(BalancerOptions.model_validate({"strategy": name, **options}))
    for each in capacities:
        made.generator_joined(each)
    return made


def test_oversubscribed_promises_capacity_over_its_coefficient() -> None:
    balancing = named("oversubscribed", capacity("g", 1024), coefficient=0.5)
    for index in range(20):
        balancing.wish(wish(f"r{index}", 128))
    assert sum(lease.reserve for lease in balancing.grants()) == 2048


def test_oversubscribed_still_refuses_what_the_engine_cannot_hold() -> None:
    with pytest.raises(Unplaceable, match="largest generator can promise 256"):
        named("oversubscribed", capacity("g", 256), coefficient=0.5).wish(wish("r", 300))


def test_round_robin_takes_turns_whatever_ends() -> None:
    balancing = named("round_robin", capacity("g0"), capacity("g1"), capacity("g2"))
    placed = []
    for index in range(6):
        balancing.wish(wish(f"r{index}"))
        placed += [lease.generator for lease in balancing.grants()]
        balancing.release(f"r{index}")
    assert placed == ["g0", "g1", "g2"] * 2


def test_least_sessions_counts_rollouts_that_are_in_tool_calls() -> None:
    balancing = named("least_sessions", capacity("g0"), capacity("g1"))
    for name in "abcd":
        balancing.wish(wish(name))
    held = {lease.rollout: lease.generator for lease in balancing.grants()}
    for name in [name for name, generator in held.items() if generator == "g0"]:
        balancing.release(name)
    for name in "ef":
        balancing.wish(wish(name))
    assert [lease.generator for lease in balancing.grants()] == ["g0", "g0"]


def test_a_static_batch_is_not_refilled_before_all_of_it_is_done() -> None:
    balancing = named("static_async", capacity("g0"), capacity("g1"), batch=2)
    for index in range(6):
        balancing.wish(wish(f"r{index}"))
    placed = {lease.rollout: lease.generator for lease in balancing.grants()}
    assert sorted(placed.values()) == ["g0", "g0", "g1", "g1"]
    first, second = [name for name, generator in placed.items() if generator == "g0"]
    balancing.release(first)
    assert balancing.grants() == ()
    balancing.release(second)
    assert [lease.generator for lease in balancing.grants()] == ["g0", "g0"]


def test_at_a_turn_barrier_short_turns_wait_for_the_longest() -> None:
    balancing = named("static", capacity("g0"), capacity("g1"), batch=3)
    for index in range(6):
        balancing.wish(wish(f"r{index}"))
    leases = balancing.grants()
    assert all(lease.turn_barrier for lease in leases)
    one, two, three = [lease.rollout for lease in leases if lease.generator == "g0"]
    balancing.turn_wish(one)
    balancing.turn_wish(two)
    balancing.turn_wish("unknown")
    assert balancing.turns() == ()
    balancing.turn_wish(three)
    assert balancing.turns() == (one, two, three) and balancing.turns() == ()
    balancing.turn_wish(one)
    balancing.release(three)
    assert balancing.turns() == ()
    balancing.release(two)
    assert balancing.turns() == (one,), "nobody is left to wait for"


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="predictive"):
        BalancerOptions.model_validate({"strategy": "clairvoyant"})
