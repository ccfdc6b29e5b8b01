"""Groups are compared with what was to be expected of them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from policies.group_lengths import FACTORS, KINDS, SHAPE, USUAL, Group, Groups


def kind_of(factor: float) -> int:
    """The kind whose factor is nearest, in ratio."""
    return min(range(KINDS), key=lambda kind: abs(math.log(FACTORS[kind] / factor)))


@pytest.mark.parametrize(("ended", "risk"), [(0, 0.0), (0, 3.0), (1, 0.1), (7, 2.0), (12, 31.0), (32, 5.0)])
def test_the_factor_is_the_mean_of_what_remains_likely(ended: int, risk: float) -> None:
    """Against the integral over all factors: a gamma prior of mean 1, times the chance of these ends."""
    factors = np.linspace(1e-6, 60.0, 400_000)
    likely = np.exp((SHAPE - 1 + ended) * np.log(factors) - (SHAPE + risk) * factors)
    mean = float((factors * likely).sum() / likely.sum())
    group = Group("g")
    for _ in range(ended):
        group.has_ended(risk / ended)
    group.risk_of_running = risk if not ended else 0.0
    group.compare()
    assert group.kind == kind_of(mean)


def test_groups_are_told_apart_by_what_their_rollouts_show() -> None:
    """Ends are drawn at thrice, once and a third of the usual risk."""
    rng, groups = random.Random(3), Groups()
    for name, factor in (("short", 3.0), ("usual", 1.0), ("long", 1 / 3)):
        for _ in range(200):
            groups.named(name).has_ended(rng.expovariate(factor))
    groups.compare(())
    assert groups.kind("short") == kind_of(3.0) and groups.kind("usual") == USUAL
    assert groups.kind("long") == kind_of(1 / 3)
    assert groups.kind("never seen") == USUAL


def test_those_that_run_on_and_on_make_a_group_a_long_one() -> None:
    groups = Groups()
    group = groups.named("g")
    groups.compare([(group, 0.9)] * 10)
    assert group.kind == kind_of(SHAPE / (SHAPE + 9)) < USUAL
    groups.compare([(group, 0.0)] * 10)
    assert group.kind == USUAL, "they are looked at anew each time, not added up"


def test_what_is_forgotten_is_of_the_usual_kind() -> None:
    groups = Groups()
    for name in "ab":
        groups.compare([(groups.named(name), 50.0)])
    groups.compare([(groups.named("a"), 50.0), (groups.named("b"), 50.0)])
    groups.forget_all_but({"b"})
    assert groups.kind("a") == USUAL and groups.kind("b") == 0
