"""How long rollouts become is learned from all that were seen, those that still run included."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.group_lengths import FACTORS, KINDS, USUAL
from policies.length_prediction import (
    BUCKETS,
    FORGET_AFTER,
    LARGEST_SHARE,
    LEAST_FACTOR,
    PRIOR_ENDS,
    LengthPrediction,
)

LONGEST = 6400


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
    assert survival[21] / survival[20] == pytest.approx(1 - 3 / (3 + 397 / 2), abs=0.003)


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


@pytest.mark.parametrize(("ended", "share"), [(False, LEAST_FACTOR * PRIOR_ENDS[40]), (True, LARGEST_SHARE)])
def test_what_is_made_of_the_prior_has_bounds(ended: bool, share: float) -> None:
    """However many got through so far, or ended: what was not seen is neither ruled out nor certain."""
    lengths = LengthPrediction(LONGEST)
    see(lengths, 30, 20_000, ended)
    survival = lengths.survival(buckets() if ended else buckets((30, 20_000)))
    assert 1 - survival[41] / survival[40] == pytest.approx(share)


def test_older_ends_count_half() -> None:
    lengths = LengthPrediction(LONGEST)
    see(lengths, 10, FORGET_AFTER, ended=True)
    see(lengths, 50, FORGET_AFTER // 2, ended=True)
    assert lengths.survival(buckets())[11] == pytest.approx(0.5, abs=0.01)


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


EVENTS = st.lists(
    st.tuples(
        st.integers(0, BUCKETS - 1),
        st.integers(0, BUCKETS - 1),
        st.sampled_from(["runs", "ended", "lost"]),
        st.integers(1, 300),
    ),
    max_size=20,
)


@given(EVENTS)
def test_survival_is_1_at_the_start_and_never_rises_whatever_was_seen(
    seen: list[tuple[int, int, str, int]],
) -> None:
    lengths, supposed = LengthPrediction(LONGEST), buckets()
    for told, further, becomes, rollouts in seen:
        see(lengths, told, rollouts, ended=becomes == "ended")
        if becomes == "runs":
            supposed[min(BUCKETS - 1, told + further)] += rollouts
        elif becomes == "lost":
            for _ in range(rollouts):
                lengths.lost(told)
    survival = lengths.survival(supposed)
    assert survival[0] == 1.0 and np.all(np.diff(survival) <= 0) and survival[-1] > 0
    lengths.refresh(supposed)
    assert np.all(lengths.moments >= 0) and np.all(np.isfinite(lengths.moments))
    assert lengths.risk[0] == 0 and all(np.diff(lengths.risk) >= 0)
    for now in (0, 30, BUCKETS - 1):
        mean = lengths.by_place[USUAL * BUCKETS + now, 0]
        assert mean[0] == (now + 1) * lengths.width, "it is alive where it is"
        assert not mean[BUCKETS - now :].any(), "and nobody is beyond the longest"
