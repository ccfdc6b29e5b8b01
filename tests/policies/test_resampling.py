"""Resample-on-correct: penalties, counts, and the frequencies of the weighted draws."""

import itertools
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.tool_call import ToolCall, ToolResult
from policies.options import ResamplingOptions
from policies.resampling import error_penalty, format_penalty, penalty, resample
from policies.trajectory import CallRecord
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory

ROC = ResamplingOptions()


def with_calls(*statuses: str, **fields):
    calls = tuple(
        CallRecord(
            turn=0, call=ToolCall(id=str(i), code=""), result=ToolResult.model_validate({"id": str(i), "status": s})
        )
        for i, s in enumerate(statuses)
    )
    return trajectory(PROMPT, MODEL, calls=calls, **fields)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), 0.5),
        (("success",), 0.0),
        (("success", "error"), 0.5),
        (("timeout", "memory", "output_limit", "killed", "invalid_call", "error"), 1.0),
        (("success", "error", "error"), 2 / 3),
        (("sandbox_failure", "success"), 0.0),
        (("sandbox_failure", "error"), 1.0),
        (("sandbox_failure",), 0.5),
    ],
)
def test_error_penalty_is_the_share_of_calls_that_the_model_got_wrong(statuses, expected: float) -> None:
    assert error_penalty(with_calls(*statuses)) == pytest.approx(expected)


def test_what_a_tool_prints_is_no_error() -> None:
    call = ToolCall(id="0", code="")
    said = CallRecord(turn=0, call=call, result=ToolResult(id="0", status="success", stdout="max error 1e-9"))
    assert error_penalty(trajectory(PROMPT, MODEL, calls=(said,))) == 0.0


@pytest.mark.parametrize(
    ("tags", "turns", "expected"),
    [(0, 3, 1.0), (1, 1, 0.0), (1, 5, 0.0), (2, 2, 0.5), (3, 4, 0.5), (9, 2, 1.0)],
)
def test_format_penalty_counts_answers_beyond_the_first_per_turn(tags: int, turns: int, expected: float) -> None:
    assert format_penalty(trajectory(PROMPT, MODEL, answer_tags=tags, turns=turns)) == pytest.approx(expected)


def test_penalty_is_the_sum_of_both() -> None:
    assert penalty(with_calls("error", "success", answer_tags=2, turns=2)) == pytest.approx(1.0)


def group_of(positives: int, negatives: int) -> list[float]:
    return [1.0] * positives + [0.0] * negatives


@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0]), max_size=40),
    keep=st.integers(1, 24),
    minima=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    rule=st.sampled_from(["weighted", "sorted"]),
    seed=st.integers(0, 99),
)
def test_exactly_the_group_size_is_kept_and_counts_tell_the_truth(rewards, keep, minima, rule, seed) -> None:
    options = ResamplingOptions(positives=rule, minimum_positives=minima[0], minimum_negatives=minima[1])
    penalties = [random.Random(seed + i).choice([0.0, 0.5, 2.0]) for i in range(len(rewards))]
    kept = resample(rewards, penalties, keep, options, random.Random(seed))
    assert len(kept.indices) == min(keep, len(rewards))
    assert list(kept.indices) == sorted(set(kept.indices)) and all(0 <= i < len(rewards) for i in kept.indices)
    assert kept.positives == sum(rewards[i] > 0 for i in kept.indices)
    assert kept.positives + kept.negatives == len(kept.indices)


@given(positives=st.integers(0, 40), negatives=st.integers(0, 40), keep=st.integers(1, 20))
def test_half_of_the_negatives_are_kept_as_far_as_positives_fill_the_rest(positives, negatives, keep) -> None:
    kept = resample(group_of(positives, negatives), [0.0] * (positives + negatives), keep, ROC, random.Random(0))
    if positives + negatives <= keep:
        assert (kept.positives, kept.negatives) == (positives, negatives)
    else:
        half = min(negatives // 2, keep)
        assert kept.positives == min(positives, keep - half)
        assert kept.negatives == keep - kept.positives


@pytest.mark.parametrize(
    ("positives", "negatives", "expected"),
    [(0, 32, 0), (1, 31, 1), (2, 30, 1), (3, 29, 2), (16, 16, 8), (30, 2, 15), (31, 1, 16), (32, 0, 16)],
)
def test_sixteen_of_thirty_two(positives: int, negatives: int, expected: int) -> None:
    kept = resample(group_of(positives, negatives), [0.0] * 32, 16, ROC, random.Random(0))
    assert (kept.positives, kept.negatives) == (expected, 16 - expected)


@pytest.mark.parametrize(
    ("positives", "negatives", "expected"),
    [(0, 32, 0), (1, 31, 1), (2, 30, 2), (3, 29, 2), (16, 16, 8), (30, 2, 14), (31, 1, 15), (32, 0, 16)],
)
def test_minima_of_two_keep_rare_rollouts(positives: int, negatives: int, expected: int) -> None:
    options = ResamplingOptions(minimum_positives=2, minimum_negatives=2)
    assert resample(group_of(positives, negatives), [0.0] * 32, 16, options, random.Random(0)).positives == expected


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), max_size=20), keep=st.integers(1, 8))
def test_rule_none_keeps_all_that_was_sampled(rewards, keep) -> None:
    kept = resample(rewards, [0.0] * len(rewards), keep, ResamplingOptions(rule="none"), random.Random(0))
    assert kept.indices == tuple(range(len(rewards)))


def test_sorted_keeps_the_lowest_penalties_and_breaks_ties_by_index() -> None:
    options = ResamplingOptions(positives="sorted")
    kept = resample([1.0] * 6, [0.5, 0.0, 2.0, 0.5, 0.1, 0.5], 4, options, random.Random(0))
    assert kept.indices == (0, 1, 3, 4)


def test_same_seed_same_choice() -> None:
    rewards, penalties = group_of(20, 12), [i % 3 / 2 for i in range(32)]
    chosen = {resample(rewards, penalties, 16, ROC, random.Random(seed)).indices for seed in (5, 5, 5)}
    assert len(chosen) == 1
    assert resample(rewards, penalties, 16, ROC, random.Random(6)).indices not in chosen


def exact_inclusion(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """Probability of each set of `count` successive weighted draws without replacement, by enumerating the orders."""
    sets: dict[tuple[int, ...], float] = defaultdict(float)
    for order in itertools.permutations(range(len(weights)), count):
        probability, left = 1.0, sum(weights)
        for index in order:
            probability *= weights[index] / left
            left -= weights[index]
        sets[tuple(sorted(order))] += probability
    return sets


@pytest.mark.parametrize(
    ("penalties", "keep", "epsilon"),
    [
        ([0.0, 0.0, 0.5, 1.0, 2.0], 2, 0.1),
        ([0.0, 1.0, 1.5, 2.0], 3, 0.1),
        ([0.0, 0.25, 2.0, 2.0], 1, 1.0),
        ([0.0, 0.0, 0.25, 0.5, 0.5, 1.0, 1.5, 2.0], 4, 0.1),
        ([0.0, 0.0, 0.25, 0.5, 0.5, 1.0, 1.5, 2.0], 7, 0.1),
        ([0.0, 0.2, 0.4, 0.9, 1.1, 2.0, 2.0], 5, 0.5),
    ],
)
def test_positives_are_drawn_as_often_as_exact_enumeration_says(penalties, keep: int, epsilon: float) -> None:
    trials, rng = 20_000, random.Random(1)
    options = ResamplingOptions(epsilon=epsilon)
    rewards = [1.0] * len(penalties)
    seen = Counter(resample(rewards, penalties, keep, options, rng).indices for _ in range(trials))
    expected = exact_inclusion([1 / (p + epsilon) for p in penalties], keep)
    assert sum(expected.values()) == pytest.approx(1.0)
    for chosen, probability in expected.items():
        deviation = (trials * probability * (1 - probability)) ** 0.5
        assert abs(seen[chosen] - trials * probability) < 4.5 * deviation + 1, (chosen, probability)


def test_how_often_each_positive_is_kept_beside_negatives_is_what_enumeration_says() -> None:
    """Eight positives and eight negatives: of each side half of its share is kept, and who, is drawn."""
    penalties = [0.0, 0.1, 0.5, 0.5, 1.0, 1.0, 1.5, 2.0]
    trials, rng = 20_000, random.Random(4)
    rewards = group_of(8, 8)
    seen = Counter(i for _ in range(trials) for i in resample(rewards, penalties + [0.7] * 8, 8, ROC, rng).indices)
    sets = exact_inclusion([1 / (p + ROC.epsilon) for p in penalties], 4)
    for index in range(16):
        probability = sum(p for chosen, p in sets.items() if index in chosen) if index < 8 else 0.5
        deviation = (trials * probability * (1 - probability)) ** 0.5
        assert abs(seen[index] - trials * probability) < 4.5 * deviation + 1, index


@pytest.mark.parametrize("size", range(1, 9))
def test_who_is_drawn_first_is_proportional_to_the_weights(size: int) -> None:
    penalties = [0.0, 2.0, 0.5, 1.0, 0.25, 1.5, 0.0, 0.75][:size]
    trials, rng = 20_000, random.Random(5)
    seen = Counter(resample([1.0] * size, penalties, 1, ROC, rng).indices[0] for _ in range(trials))
    total = sum(1 / (p + ROC.epsilon) for p in penalties)
    for index, value in enumerate(penalties):
        probability = 1 / (value + ROC.epsilon) / total
        assert abs(seen[index] - trials * probability) < 4.5 * (trials * probability * (1 - probability)) ** 0.5 + 1


@pytest.mark.parametrize("positives", range(12))
@pytest.mark.parametrize("keep", [1, 2, 3, 5, 7])
def test_odd_and_tiny_groups_keep_exactly_their_size(positives: int, keep: int) -> None:
    for size in range(positives, 12):
        rewards = group_of(positives, size - positives)
        for rule in ("weighted", "sorted"):
            options = ResamplingOptions(positives=rule)
            kept = resample(rewards, [0.5] * size, keep, options, random.Random(size))
            assert len(kept.indices) == len(set(kept.indices)) == min(keep, size)


def test_negatives_are_drawn_uniformly_whatever_their_penalties() -> None:
    trials, rng = 12_000, random.Random(2)
    rewards, penalties = group_of(2, 4), [0.0, 0.0, 0.0, 2.0, 0.5, 1.0]
    seen = Counter(i for _ in range(trials) for i in resample(rewards, penalties, 4, ROC, rng).indices if i >= 2)
    assert sum(seen.values()) == 2 * trials
    for index in range(2, 6):
        assert abs(seen[index] - trials / 2) < 4.5 * (trials / 4) ** 0.5


def test_draws_stay_weighted_where_powers_would_underflow() -> None:
    options, rng = ResamplingOptions(epsilon=1e-9), random.Random(3)
    clean = [resample([1.0] * 4, [0.0, 0.0, 2.0, 2.0], 2, options, rng).indices for _ in range(200)]
    assert set(clean) == {(0, 1)}


@pytest.mark.parametrize(
    ("rewards", "penalties", "keep"),
    [([1.0], [], 1), ([1.0], [0.0], 0), ([1.0], [-0.1], 1), ([1.0], [float("nan")], 1)],
)
def test_nonsense_is_refused(rewards, penalties, keep: int) -> None:
    with pytest.raises(ValueError):
        resample(rewards, penalties, keep, ROC, random.Random(0))
