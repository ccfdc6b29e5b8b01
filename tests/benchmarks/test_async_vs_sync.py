"""The benchmark's arithmetic, on runs that never were."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.async_vs_sync import Share, compared, difference, table
from benchmarks.roc_vs_grpo import Outcome
from orchestration.metrics import wilson_interval


def share(correct: int, asked: int) -> Share:
    return Share(correct / asked, *wilson_interval(correct, asked))


def test_differences_of_shares_have_newcombes_interval() -> None:
    """Newcombe 1998, table II, method 10: 56/70 against 48/80, and 9/10 against 3/10."""
    for one, other, low, high in (
        (share(56, 70), share(48, 80), 0.0524, 0.3339),
        (share(9, 10), share(3, 10), 0.1705, 0.8090),
    ):
        found = difference(one, other)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def outcome(seconds: list[float], tokens: dict[str, float], accuracy: float, idle: list[float]) -> Outcome:
    def step(took: float, idle_share: float) -> dict[str, Any]:
        figures = {"generator_idle_share": idle_share, "model_tokens": 12.0, "several_versions_share": 0.5}
        return {"stage": "rl", "time_total_s": took, "groups_too_old": 1.0} | figures | tokens

    return Outcome(
        [step(*each) for each in zip(seconds, idle, strict=True)], {"stages": [{"accuracy": accuracy, "problems": 100}]}
    )


def test_arms_are_summed_up_over_their_seeds() -> None:
    found = compared(
        {
            "synchronous": [outcome([4, 4, 4], {"staleness_tokens_0": 10.0}, 0.6, [0.5, 0.5, 0.5])] * 2,
            "in_flight": [
                outcome([6, 1, 1], {"staleness_tokens_0": 1.0, "staleness_tokens_1": 3.0}, accuracy, [0.1, 0.5, 0.5])
                for accuracy in (0.5, 0.7)
            ],
        }
    )
    synchronous, in_flight = found["synchronous"], found["in_flight"]
    assert (synchronous.step_seconds, in_flight.step_seconds) == pytest.approx((4.0, 8 / 3))
    assert (synchronous.tokens_per_s, in_flight.tokens_per_s) == (3.0, 4.5)
    assert (synchronous.generator_idle_share, in_flight.generator_idle_share) == pytest.approx((0.5, 1.6 / 8))
    assert in_flight.staleness == {0: 0.25, 1: 0.75} and synchronous.staleness == {0: 1.0}
    assert in_flight.groups_too_old == 6 and in_flight.asked == 200
    assert in_flight.accuracy == pytest.approx(share(120, 200))
    assert synchronous.difference is None and in_flight.difference is not None
    assert in_flight.difference.value == pytest.approx(0.0) and in_flight.difference.low < 0 < in_flight.difference.high
    assert "| tokens by versions behind | 0: 100.0% | 0: 25.0%, 1: 75.0% |" in table(found)
