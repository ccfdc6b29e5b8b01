"""Predictive admission lets in as many as are expected to fit, and puts them where the least is left to do."""

from __future__ import annotations

import random

import pytest

from policies.balancing import BalancerOptions, Capacity, Wish
from policies.predictive_balancing import OLDEST_EVERY, Predictive

LONGEST, PROMPT = 6400, 100


def predictive(kv_tokens: int = 64_000, generators: int = 1, sigmas: float = 1.0) -> Predictive:
    made = Predictive(BalancerOptions(strategy="predictive", sigmas=sigmas))
    for index in range(generators):
        made.generator_joined(
            Capacity(
                generator=f"g{index}",
                incarnation=0,
                kv_tokens=kv_tokens,
                block_tokens=16,
                max_sequence_tokens=LONGEST,
            )
        )
    return made


def wish(rollout: str, group: str = "") -> Wish:
    return Wish(rollout=rollout, prompt_tokens=PROMPT, max_tokens=LONGEST, group=group)


def show(balancing: Predictive, lengths: list[int]) -> None:
    """Let rollouts of these lengths run to their ends, one at a time."""
    for index, tokens in enumerate(lengths):
        balancing.wish(wish(f"shown-{index}"))
        assert balancing.grants()
        balancing.progressed(f"shown-{index}", tokens // 2)
        balancing.release(f"shown-{index}", tokens)


def one_at_a_time() -> Predictive:
    """A single generator that never dares to hold two rollouts."""
    return predictive(kv_tokens=LONGEST, sigmas=1000.0)


def with_a_short_and_a_long_group() -> Predictive:
    """Of each group one rollout runs, and 32 have ended."""
    balancing = predictive(kv_tokens=40_000, sigmas=0.0)
    for group in ("short", "long"):
        balancing.wish(wish(f"{group}-stays", group))
    for index in range(64):
        group, tokens = ("short", 400) if index % 2 else ("long", LONGEST - 1)
        balancing.wish(wish(f"{group}-{index}", group))
        assert balancing.grants()
        balancing.release(f"{group}-{index}", tokens)
    return balancing


def admitted(balancing: Predictive, wishes: int = 500) -> int:
    for index in range(wishes):
        balancing.wish(wish(f"w-{index}"))
    return len(balancing.grants())


def test_short_rollouts_let_more_of_their_kind_in_than_long_ones() -> None:
    short, long = predictive(), predictive()
    show(short, [500] * 400)
    show(long, [LONGEST - 1] * 400)
    assert admitted(long) in (9, 10), "64,000 tokens of rollouts that all become 6,400"
    assert 90 <= admitted(short) <= 128


def test_what_is_let_in_rarely_outgrows_the_cache() -> None:
    """Lengths are drawn, sessions grow in step: mean plus 2 sigmas is exceeded by few of the peaks."""
    rng = random.Random(0)
    drawn = [min(LONGEST - 1, round(rng.lognormvariate(7.3, 0.8))) + PROMPT for _ in range(3000)]
    lengths = [min(LONGEST - 1, tokens) for tokens in drawn]
    balancing = predictive(sigmas=2.0)
    show(balancing, lengths)
    count = admitted(balancing)
    over = 0
    for _ in range(200):
        chosen = rng.sample(lengths, count)
        peak = max(sum(min(grown, n) for n in chosen if n >= grown) for grown in range(PROMPT, LONGEST, 100))
        over += peak > 64_000
    worst_case = 64_000 // LONGEST
    assert count > 2 * worst_case and over <= 10


def test_the_last_of_the_queue_are_let_in_with_a_smaller_margin() -> None:
    rng = random.Random(2)
    lengths = [min(LONGEST - 1, round(rng.lognormvariate(7.3, 0.8))) + PROMPT for _ in range(2000)]
    crowded, nearly_done = predictive(sigmas=4.0), predictive(sigmas=4.0)
    show(crowded, lengths)
    show(nearly_done, lengths)
    count = admitted(crowded, wishes=500)
    assert admitted(nearly_done, wishes=count + 4) == count + 4
    (load,) = nearly_done.loads()
    assert load.promised <= 64_000, "what is expected still fits"


def test_a_long_turn_is_not_taken_for_no_growth() -> None:
    """A rollout that has told nothing for four seconds is taken to have grown as others have."""
    balancing = predictive(kv_tokens=20_000)
    show(balancing, [6000] * 300)
    balancing.wish(wish("first"))
    balancing.grants()
    balancing.time_is(1.0)
    balancing.progressed("first", 1100)  # 1,000 tokens a second
    promised = balancing.loads()[0].promised
    balancing.wish(wish("second"))
    balancing.grants()
    balancing.time_is(5.0)
    balancing.progressed("first", 1200)
    (load,) = balancing.loads()
    assert promised == pytest.approx(6000, rel=0.15)
    second = balancing._sessions["second"]
    assert second.tokens == PROMPT and second.bucket > 20, "it has told nothing since its start, four seconds ago"
    assert load.promised > promised


def test_the_last_turn_of_a_rollout_tells_how_fast_others_grow() -> None:
    balancing = predictive()
    for rollout in ("first", "second"):
        balancing.wish(wish(rollout))
    assert len(balancing.grants()) == 2
    balancing.time_is(10.0)
    balancing.release("first", PROMPT + 1000)  # 100 tokens a second
    second = balancing._sessions["second"]
    assert second.tokens == PROMPT and second.bucket == (PROMPT + 1000) // 100


def test_one_rollout_of_each_group_goes_first_then_the_longest_groups() -> None:
    balancing = one_at_a_time()
    balancing.wish(wish("holder"))
    assert len(balancing.grants()) == 1
    for group in ("short", "long"):
        for index in range(3):
            balancing.wish(wish(f"{group}-{index}", group))
    order, held = [], "holder"
    tokens = {"h": 100, "s": 300, "l": LONGEST - 1}
    while True:
        balancing.release(held, tokens[held[0]])
        leases = balancing.grants()
        if not leases:
            break
        (held,) = [lease.rollout for lease in leases]
        order.append(held)
    assert order[:2] == ["short-0", "long-0"]
    assert order[2:4] == ["long-1", "long-2"] and set(order[4:]) == {"short-1", "short-2"}


def test_whoever_has_waited_longest_is_not_overtaken_for_ever() -> None:
    balancing = one_at_a_time()
    balancing.wish(wish("old-probe", "old"))
    balancing.grants()
    balancing.wish(wish("old-1", "old"))
    balancing.wish(wish("first", "first"))
    balancing.release("old-probe", 200)
    granted = [lease.rollout for lease in balancing.grants()]
    for index in range(OLDEST_EVERY + 1):
        balancing.wish(wish(f"new-{index}", f"fresh-{index}"))
        for rollout in granted:
            balancing.release(rollout, LONGEST - 1)
        granted = [lease.rollout for lease in balancing.grants()]
        if "old-1" in granted:
            assert index > 0
            return
    pytest.fail("overtaken by everybody")


def test_a_burst_spreads_over_equal_generators() -> None:
    balancing = predictive(generators=4)
    for index in range(20):
        balancing.wish(wish(f"r{index}"))
    placed = [lease.generator for lease in balancing.grants()]
    assert [placed.count(f"g{index}") for index in range(4)] == [5, 5, 5, 5]


def test_a_generator_with_twice_the_cache_is_given_twice_the_work() -> None:
    balancing = predictive(kv_tokens=200_000)
    balancing.generator_joined(
        Capacity(generator="half", incarnation=0, kv_tokens=100_000, block_tokens=16, max_sequence_tokens=LONGEST)
    )
    for index in range(30):
        balancing.wish(wish(f"r{index}"))
    placed = [lease.generator for lease in balancing.grants()]
    assert 19 <= placed.count("g0") <= 21, "of whole rollouts one more or less"


def test_who_goes_first_and_fits_does_not_wait_with_whoever_was_turned_away() -> None:
    balancing = predictive(kv_tokens=20_000)
    balancing.generator_joined(
        Capacity(generator="small", incarnation=0, kv_tokens=3200, block_tokens=16, max_sequence_tokens=3200)
    )
    asked = 0
    while True:  # these fit the large generator only
        balancing.wish(wish(f"long-{asked}", "long"))
        if not balancing.grants():
            break
        asked += 1
    assert asked > 0 and {load.capacity.generator: load.sessions for load in balancing.loads()} == {
        "g0": asked,
        "small": 0,
    }
    balancing.wish(Wish(rollout="probe", prompt_tokens=PROMPT, max_tokens=3200, group="new"))
    assert [(lease.rollout, lease.generator) for lease in balancing.grants()] == [("probe", "small")]


def test_a_group_that_has_shown_long_rollouts_takes_more_room() -> None:
    """More of each want to come: with one cache, fewer of the long ones are let in."""
    counts = {}
    for waits in ("short", "long"):
        balancing = with_a_short_and_a_long_group()
        for index in range(100):
            balancing.wish(wish(f"next-{index}", waits))
        counts[waits] = len(balancing.grants())
    assert counts["short"] > 2 * counts["long"] > 0


def test_whoever_waits_is_let_in_by_what_its_group_has_shown() -> None:
    """There is room for one more short one, not for another long one."""
    granted = {}
    for waits in ("short", "long"):
        balancing = with_a_short_and_a_long_group()
        while True:  # filled up with long ones
            balancing.wish(wish(f"next-{len(balancing._sessions)}", "long"))
            if not balancing.grants():
                break
        balancing.withdraw(f"next-{len(balancing._sessions)}")
        balancing.wish(wish("last", waits))
        granted[waits] = [lease.rollout for lease in balancing.grants()]
    assert granted == {"short": ["last"], "long": []}


def test_equal_generators_take_turns_though_prompts_differ() -> None:
    """So each has as many of each group, whose rollouts come one after another."""
    balancing = predictive(generators=4)
    for index, prompt in enumerate([100, 300, 200, 100, 300, 100, 200, 300]):
        balancing.wish(Wish(rollout=f"r{index}", prompt_tokens=prompt, max_tokens=LONGEST))
    assert [lease.generator for lease in balancing.grants()] == ["g0", "g1", "g2", "g3"] * 2


def test_the_next_one_goes_where_the_least_is_left_to_do_not_where_the_most_room_is() -> None:
    """Twelve that are nearly done hold more than eight that have just begun ever will, and are done much sooner."""
    balancing = predictive(kv_tokens=100_000, generators=2)
    show(balancing, [LONGEST - 1] * 300)
    for index in range(20):
        target = "g0" if index < 12 else "g1"
        balancing.wish(wish(f"r{index}").model_copy(update={"generator": target}))
    assert len(balancing.grants()) == 20
    for index in range(12):
        balancing.progressed(f"r{index}", LONGEST - 200)
    nearly_done, begun = balancing.loads()
    assert nearly_done.promised > begun.promised
    balancing.wish(wish("next"))
    assert [lease.generator for lease in balancing.grants()] == ["g0"]
