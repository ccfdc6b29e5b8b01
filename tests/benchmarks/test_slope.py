"""The slope with which soaks tell growth from noise."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.slope import slope_of

MINUTES = np.arange(120) / 12


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, len(MINUTES))


def test_a_line_has_its_slope_and_the_interval_holds_it() -> None:
    slope = slope_of(MINUTES, 3 * MINUTES + 40 + noise(1), np.random.default_rng(0))
    assert slope.low < 3 < slope.high and slope.high - slope.low < 1
    assert slope.grows(1) and not slope.grows(5)


def test_what_can_not_be_told_from_none_is_no_growth_however_steep() -> None:
    slope = slope_of(MINUTES[:20], 50 * noise(2)[:20], np.random.default_rng(0))
    assert slope.low < 0 < slope.high and not slope.grows(-1e9)


def test_lives_that_begin_at_different_sizes_share_one_slope() -> None:
    lives = np.repeat([0, 1, 2, 3], 30)
    sizes = 2 * MINUTES - 100.0 * lives + noise(3)  # a line through all of it would fall
    assert slope_of(MINUTES, sizes, np.random.default_rng(0)).value < -10
    slope = slope_of(MINUTES, sizes, np.random.default_rng(0), lives.tolist())
    assert abs(slope.value - 2) < 0.5 and slope.grows(1)


def test_nineteen_intervals_of_twenty_hold_the_slope_or_nearly_so() -> None:
    found = [slope_of(MINUTES, 2 * MINUTES + noise(seed), np.random.default_rng(seed)) for seed in range(60)]
    assert 48 <= sum(slope.low < 2 < slope.high for slope in found) <= 60


def test_samples_at_one_time_are_refused() -> None:
    with pytest.raises(ValueError, match="sample for longer"):
        slope_of([1.0, 1.0], [1.0, 2.0], np.random.default_rng(0))
