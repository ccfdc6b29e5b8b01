"""Predictive admission learns how long rollouts become, and lets in as many as fit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.balancing import BalancerOptions, Capacity, Wish
from policies.demand_forecast import Demand, Session
from policies.group_lengths import FACTORS, KINDS, USUAL, Group, Groups
from policies.length_prediction import BUCKETS, LengthPrediction
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


def buckets(*where: tuple[int, int]) -> list[int]:
    """How many are in each bucket, given as (bucket, rollouts)."""
    counts = [0] * BUCKETS
    for bucket, rollouts in where:
        counts[bucket] += rollouts
    return counts


def see(lengths: LengthPrediction, bucket: int, rollouts: int, ended: bool) -> None:
    """Rollouts that come to a bucket, and end there or not."""
    for _ in range(rollouts):
        lengths.started(0)
        lengths.passed(0, bucket)
        if ended:
            lengths.ended(bucket)


def test_rollouts_that_still_run_count_as_far_as_they_have_come() -> None:
    """Half of the rollouts are long, and so far only short ones have ended: an estimate from ends sees no long one."""
    lengths = LengthPrediction(LONGEST)
    see(lengths, 5, 500, ended=True)
    see(lengths, 40, 500, ended=False)
    survival = lengths.survival(buckets((40, 500)))
    assert survival[0] == 1.0 and np.all(np.diff(survival) <= 0)
    assert survival[39] == pytest.approx(0.5, abs=0.05), "the prior takes a little"


def test_the_estimate_is_kaplan_and_meiers() -> None:
    """Against the life table, worked out rollout by rollout; the prior fades among 12,000 of them."""
    rng, lengths = random.Random(1), LengthPrediction(BUCKETS)
    seen = [(min(rng.randrange(BUCKETS), rng.randrange(BUCKETS)), rng.random() < 0.6) for _ in range(12_000)]
    for bucket, ended in seen:
        see(lengths, bucket, 1, ended)
    running = buckets(*((bucket, 1) for bucket, ended in seen if not ended))
    ends = buckets(*((bucket, 1) for bucket, ended in seen if ended))
    expected, survival = 1.0, lengths.survival(running)
    for bucket in range(30):
        assert survival[bucket] == pytest.approx(expected, abs=0.01)
        there = sum(running[bucket:]) + sum(ends[bucket:]) - running[bucket] / 2
        expected *= 1 - ends[bucket] / there


def test_the_first_ends_in_a_bucket_do_not_count_for_all_who_are_in_it() -> None:
    """Three of 400 have ended in the bucket that all are in: nothing says that nobody gets through."""
    lengths = LengthPrediction(LONGEST)
    see(lengths, 20, 397, ended=False)
    see(lengths, 20, 3, ended=True)
    survival = lengths.survival(buckets((20, 397)))
    assert survival[21] / survival[20] == pytest.approx(1 - 3 / 200, abs=0.01)


def test_where_rollouts_are_taken_to_be_counts_until_they_tell() -> None:
    """They have told that they came to bucket 4, and are taken to be in 12 by now: all got through those between."""
    lengths = LengthPrediction(LONGEST)
    see(lengths, 4, 1000, ended=False)
    told, supposed = lengths.survival(buckets((4, 1000))), lengths.survival(buckets((12, 1000)))
    assert supposed[12] > told[12]
    assert np.array_equal(told, lengths.survival(buckets((4, 1000)))), "what is supposed is not learned"


def test_one_that_ran_ahead_and_ended_says_little() -> None:
    lengths = LengthPrediction(LONGEST)
    see(lengths, 3, 300, ended=False)
    before = lengths.survival(buckets((3, 300)))
    see(lengths, 9, 1, ended=True)
    after = lengths.survival(buckets((3, 300)))
    assert before[10] - 0.04 < after[10] < before[10]


@pytest.mark.parametrize(("ended", "longer"), [(0, True), (150, False)])
def test_beyond_what_was_seen_lengths_go_on_as_they_were(ended: int, longer: bool) -> None:
    """The prior expects 26 of 1,000 to end before bucket 12; many more or none say something about the others."""
    unseen, lengths = LengthPrediction(LONGEST), LengthPrediction(LONGEST)
    for bucket in range(12):
        see(lengths, bucket, ended // 12, ended=True)
    running = buckets((12, 1000 - ended // 12 * 12))
    see(lengths, 12, sum(running), ended=False)
    prior, learned = unseen.survival(buckets()), lengths.survival(running)
    assert (learned[30] / learned[13] > prior[30] / prior[13]) == longer


def test_a_rollout_that_is_lost_is_no_end() -> None:
    lengths = LengthPrediction(LONGEST)
    see(lengths, 8, 200, ended=False)
    running = buckets((8, 200))
    before = lengths.survival(running)
    for _ in range(100):
        lengths.started(0)
        lengths.lost(0)
    assert np.array_equal(lengths.survival(running), before)


@pytest.mark.parametrize("kind", [0, USUAL, KINDS - 1])
def test_a_kinds_expectations_are_those_of_its_own_survival(kind: int) -> None:
    """Against survival to the power of the kind's factor, rollout by rollout of the remaining growth."""
    lengths = LengthPrediction(LONGEST)
    see(lengths, 20, 200, ended=True)
    see(lengths, 50, 200, ended=True)
    lengths.refresh(buckets())
    reach = lengths.survival(buckets()) ** FACTORS[kind]
    for now in (0, 19, 40, BUCKETS - 1):
        mean, variance = lengths.by_place[kind * BUCKETS + now]
        for ahead in range(BUCKETS):
            then = now + ahead
            alive = reach[then] / reach[now] if then < BUCKETS else 0.0
            tokens = (then + 1) * lengths.width
            assert mean[ahead] == pytest.approx(alive * tokens)
            assert variance[ahead] == pytest.approx(alive * (1 - alive) * tokens**2, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, BUCKETS - 1), st.sampled_from(["", "a", "b"])), max_size=30))
def test_a_demand_counted_anew_is_the_sum_of_its_rollouts(rollouts: list[tuple[int, str]]) -> None:
    lengths, groups = LengthPrediction(LONGEST), Groups()
    groups.named("a").kind, groups.named("b").kind = 0, KINDS - 1
    one_by_one, at_once = Demand(), Demand()
    sessions = [Session(groups.named(name), bucket * lengths.width, bucket, 0.0) for bucket, name in rollouts]
    for session in sessions:
        one_by_one.enter(session.place, lengths)
    at_once.locate(sessions, lengths, 0.0)
    at_once.recount(sessions, lengths)
    assert at_once.work() == pytest.approx(one_by_one.work())
    assert at_once.expected_peak() == pytest.approx(one_by_one.expected_peak())
    assert at_once.peak_with(5, lengths, 2.0) == pytest.approx(one_by_one.peak_with(5, lengths, 2.0))


def test_many_short_turns_do_not_make_the_speed() -> None:
    """One long turn of 100 s at 10 tokens a second, and ten of 1 s that read a response at once."""
    lengths, demand, group = LengthPrediction(LONGEST), Demand(), Group("")
    session = Session(group, 0, 0, 0.0)
    demand.learn_speed(session, 1000, 100.0)
    for _ in range(10):
        demand.learn_speed(Session(group, 0, 0, 0.0), 50, 1.0)
    waits = Session(group, 0, 0, 0.0)
    demand.locate([waits], lengths, 100.0)
    assert waits.bucket * lengths.width < 1300, "not 2,500, as the mean of the speeds has it"


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
    """Of each group, 32 have ended and more want to come: with one cache, fewer of the long ones are let in."""
    counts = {}
    for waits in ("short", "long"):
        balancing = predictive(kv_tokens=40_000, sigmas=0.0)
        for group in ("short", "long"):
            balancing.wish(wish(f"{group}-stays", group))
        for index in range(64):
            group, tokens = ("short", 400) if index % 2 else ("long", LONGEST - 1)
            balancing.wish(wish(f"{group}-{index}", group))
            assert balancing.grants()
            balancing.release(f"{group}-{index}", tokens)
        for index in range(100):
            balancing.wish(wish(f"next-{index}", waits))
        counts[waits] = len(balancing.grants())
    assert counts["short"] > 2 * counts["long"] > 0


def test_whoever_waits_is_let_in_by_what_its_group_has_shown() -> None:
    """There is room for one more short one, not for another long one."""
    granted = {}
    for waits in ("short", "long"):
        balancing = predictive(kv_tokens=40_000, sigmas=0.0)
        for group in ("short", "long"):
            balancing.wish(wish(f"{group}-stays", group))
        for index in range(64):
            group, tokens = ("short", 400) if index % 2 else ("long", LONGEST - 1)
            balancing.wish(wish(f"{group}-{index}", group))
            assert balancing.grants()
            balancing.release(f"{group}-{index}", tokens)
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
