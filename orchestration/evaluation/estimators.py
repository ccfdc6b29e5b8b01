"""What k samples of each problem say of a model: avg@k, pass@k, maj@k, and how sure that is.

Definitions, for one problem with n samples of which c are right:
- avg@n = c / n;
- pass@k = 1 - C(n-c, k) / C(n, k): the chance that k samples drawn without replacement hold a right one (unbiased;
  Chen et al. 2021, arXiv 2107.03374, eq. 1);
- maj@n: whether the most frequent answer is right; where several are equally frequent, the share of them that is.
  Samples without an answer have no vote.

Over problems the mean is taken, and its 95% interval comes from a bootstrap over problems: samples of one problem are
not independent, so resampling them one by one would flatter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from orchestration.metrics import Interval, wilson_interval
from policies.run_progress import Figures

RESAMPLES = 4000


class Estimate(NamedTuple):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


class Vote(NamedTuple):
    """One sample of a problem."""

    answer: str | None
    """What counts as the same answer has the same text; None: no answer."""
    correct: bool


def pass_at_k(n: int, c: int, k: int) -> float:
    """See the module. Raises `ValueError` for more draws than samples."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples of each problem, and there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(votes: Sequence[Vote]) -> float:
    """maj@n of one problem: 0 or 1, or a share between them where answers are tied. Right answers are all the same."""
    counts = Counter(None if vote.correct else vote.answer for vote in votes if vote.correct or vote.answer is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    tied = [answer for answer, count in counts.items() if count == most]
    return (None in tied) / len(tied)


def over_problems(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of one value a problem, with its bootstrap interval (percentiles); same seed, same interval.

    Where all values are 0 or 1, Wilson's interval is given instead: a bootstrap of all-right or all-wrong problems has
    no width.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(data.mean())
    if set(data.tolist()) <= {0.0, 1.0}:
        return Estimate(mean, *wilson_interval(float(data.sum()), len(data)))
    draws = np.random.default_rng(seed).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.percentile(data[draws].mean(axis=1), [2.5, 97.5])
    return Estimate(mean, float(low), float(high))


def accuracy_interval(figures: Figures) -> Interval:
    """The 95% interval of an evaluation's accuracy, from what `actors.evaluation` counted."""
    samples = round(figures["samples"] or 1.0)
    if samples == 1:
        return wilson_interval(figures["correct"] or 0.0, round(figures["asked"] or 0.0))
    shares: list[float] = []
    for count in range(samples + 1):
        shares += [count / samples] * round(figures[f"problems_solved_{count}_times"] or 0.0)
    return Interval(*over_problems(shares)[1:])
