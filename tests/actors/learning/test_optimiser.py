"""The schedule, and what decays."""

import math

import pytest
import torch

from actors.learning.optimiser import build_optimiser, learning_rate
from policies.options import OptimiserOptions


def rates(total: int, **options) -> list[float]:
    return [learning_rate(step, OptimiserOptions(learning_rate=1.0, **options), total) for step in range(total)]


def test_warm_up_rises_evenly_to_the_full_rate_and_stays() -> None:
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_cosine_falls_from_the_full_rate_towards_zero_at_the_end() -> None:
    expected = [0.5, 1.0] + [0.5 + 0.5 * math.cos(math.pi * k / 4) for k in range(4)]
    assert rates(6, warmup_steps=2, schedule="cosine") == pytest.approx(expected)


def test_steps_beyond_the_planned_total_do_not_turn_back_up() -> None:
    options = OptimiserOptions(warmup_steps=0, schedule="cosine")
    assert learning_rate(11, options, 10) == learning_rate(50, options, 10) == pytest.approx(0.0)


def test_no_warm_up_starts_at_the_full_rate() -> None:
    assert rates(2, warmup_steps=0) == [1.0, 1.0]


def test_only_matrices_decay() -> None:
    layer = torch.nn.Linear(3, 2)
    optimiser = build_optimiser(layer, OptimiserOptions(weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert decay == {id(layer.weight): 0.5, id(layer.bias): 0.0}
