"""A fit finds the coefficients that made the times, and says how far it is off when none did."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cost_fitting import COEFFICIENTS, fit_error, fit_step_cost
from policies.step_cost import StepCost, StepWork


def some_work(rng: random.Random) -> list[StepWork]:
    prefill = [StepWork(1, 0, 0, tokens := rng.randint(1, 2000), tokens * (tokens + 1) // 2) for _ in range(2)]
    batch = rng.randint(1, 64)
    return [*prefill, StepWork(rng.randint(1, 60), batch, batch * rng.randint(10, 2000))]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.lists(st.floats(0.1, 10), min_size=5, max_size=5), st.integers(0, 4))
def test_exact_times_give_their_coefficients_back(seed: int, sizes: list[float], missing: int) -> None:
    rng = random.Random(seed)
    units = (5e-3, 1e-4, 1e-7, 2e-5, 1e-8)
    pairs = zip(sizes, units, strict=True)
    values = [0.0 if index == missing else size * unit for index, (size, unit) in enumerate(pairs)]
    true = StepCost(**dict(zip(COEFFICIENTS, values, strict=True)))
    works = [some_work(rng) for _ in range(40)]
    times = [sum(true.seconds(each) for each in work) for work in works]
    found = fit_step_cost(works, times)
    for name, value, unit in zip(COEFFICIENTS, values, units, strict=True):
        assert getattr(found, name) == pytest.approx(value, rel=1e-5, abs=unit * 1e-5)
    assert fit_error(found, works, times).worst < 1e-6


def test_noise_moves_the_coefficients_no_further_than_it_is_large() -> None:
    rng = random.Random(3)
    true = StepCost(base=5e-3, sequence=1e-4, context_token=1e-7, prefill_token=2e-5, prefill_pair=1e-8)
    works = [some_work(rng) for _ in range(200)]
    times = [sum(true.seconds(each) for each in work) * rng.uniform(0.9, 1.1) for work in works]
    found = fit_step_cost(works, times)
    error = fit_error(found, works, times)
    assert 0.03 < error.median < 0.07 and error.worst < 0.15
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.25)


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="4 measurements can't tell 5 coefficients apart"):
        fit_step_cost([[StepWork(1, 1, 1)]] * 4, [1.0] * 4)
