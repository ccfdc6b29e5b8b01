"""Fitting `StepCost` to measured times, by least squares on relative errors, no coefficient below zero.

Invariants: measurements of an engine that follows the model exactly give its coefficients back (those that the
measurements can tell apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from policies.step_cost import StepCost, StepWork

COEFFICIENTS = ("base", "sequence", "context_token", "prefill_token", "prefill_pair")
_UNITS = tuple(StepCost(**{other: float(other == name) for other in COEFFICIENTS}) for name in COEFFICIENTS)
"""Cost models of one coefficient each: their times are the factors of the coefficients."""


class FitError(NamedTuple):
    """Relative errors |predicted - measured| / measured."""

    median: float
    worst: float


def factors(work: Sequence[StepWork]) -> np.ndarray:
    """`[5]`: what each coefficient is multiplied with in the time of `work`."""
    return np.array([sum(unit.seconds(each) for each in work) for unit in _UNITS])


def fit_step_cost(works: Sequence[Sequence[StepWork]], seconds: Sequence[float]) -> StepCost:
    """The cost model of `[N]` measured pieces of work, each a sequence of stretches of steps, and their times.

    Raises `ValueError` if there are fewer measurements than coefficients.
    """
    if len(works) < len(COEFFICIENTS):
        raise ValueError(f"{len(works)} measurements can't tell {len(COEFFICIENTS)} coefficients apart; measure more")
    measured = np.asarray(seconds)
    table = np.stack([factors(work) for work in works]) / measured[:, None]
    scale = np.maximum(table.max(axis=0), 1e-30)
    best, best_error = np.zeros(len(COEFFICIENTS)), np.inf
    # The least non-negative solution is the plain one on some subset of the columns, and there are only 31.
    for size in range(1, len(COEFFICIENTS) + 1):
        for subset in map(list, combinations(range(len(COEFFICIENTS)), size)):
            solution = np.linalg.lstsq(table[:, subset] / scale[subset], np.ones(len(works)), rcond=None)[0]
            error = float(np.sum((table[:, subset] / scale[subset] @ solution - 1) ** 2))
            if np.all(solution >= 0) and error < best_error - 1e-12:
                best, best_error = np.zeros(len(COEFFICIENTS)), error
                best[subset] = solution / scale[subset]
    return StepCost(**dict(zip(COEFFICIENTS, best.tolist(), strict=True)))


def fit_error(cost: StepCost, works: Sequence[Sequence[StepWork]], seconds: Sequence[float]) -> FitError:
    """How far the model is from measurements."""
    predicted = np.array([sum(cost.seconds(each) for each in work) for work in works])
    errors = np.abs(predicted - np.asarray(seconds)) / np.asarray(seconds)
    return FitError(float(np.median(errors)), float(np.max(errors)))
