"""Predictive admission learns how long rollouts become, and lets in as many as fit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from policies.balancing import BalancerOptions, Capacity, Wish
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


def test_rollouts_that_still_run_count_as_far_as_they_have_come() -> None:
    """Half of the rollouts are long, and so far only short ones have ended: an estimate from ends sees no long one."""
    lengths = LengthPrediction(LONGEST)
    for _ in range(500):
        lengths.passed(0, 5)
        lengths.ended(5)
        lengths.passed(0, 40)
    survival = lengths.survival()
    assert survival[0] == 1.0 and np.all(np.diff(survival) <= 0)
    assert survival[39] == pytest.approx(0.5, abs=0.05), "the prior takes a little"


def test_the_estimate_is_kaplan_and_meiers() -> None:
    """Against the product-limit formula, worked out rollout by rollout; the prior fades among 4,000 of them."""
    rng, lengths = random.Random(1), LengthPrediction(BUCKETS)
    seen = [(min(rng.randrange(BUCKETS), rng.randrange(BUCKETS)), rng.random() < 0.6) for _ in range(4000)]
    for bucket, ended in seen:
        lengths.passed(0, bucket)
        if ended:
            lengths.ended(bucket)
    expected, survival = 1.0, lengths.survival()
    for bucket in range(30):
        assert survival[bucket] == pytest.approx(expected, abs=0.01)
        known = [end for end, ended in seen if end > bucket or (end == bucket and ended)]
        expected *= 1 - sum(end == bucket for end in known) / len(known)


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
