"""Whether something grows, such as memory: the slope of a line, with an interval that knows neighbours are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 10
"""Samples of a block of the bootstrap: longer than what one event does to an allocator."""
LEAST_BLOCKS = 6
RESAMPLES = 2000


class Slope(NamedTuple):
    """Per minute, with the 95% interval."""

    value: float
    low: float
    high: float

    def grows(self, bound: float) -> bool:
        """Whether that is growth: at least `bound` per minute, and told from none."""
        return self.value >= bound and self.low > 0


def slope_of(
    minutes: npt.ArrayLike, sizes: npt.ArrayLike, draw: np.random.Generator, lives: Sequence[int] | None = None
) -> Slope:
    """Least squares; the interval is that of a bootstrap over blocks of samples.

    `lives` says which life of a process each sample is of (ascending): processes begin at different sizes, so each has
    a line of its own, all with one slope. Raises `ValueError` for fewer than two samples, or times all the same.
    """
    when = np.asarray(minutes, float)
    of = np.zeros(len(when), int) if lives is None else np.asarray(lives)
    times, values = _centred(when, of), _centred(np.asarray(sizes, float), of)
    if len(times) < 2 or not times.any():
        raise ValueError(f"{len(times)} samples at times that do not differ have no slope; sample for longer")
    blocks = np.array_split(np.arange(len(times)), max(LEAST_BLOCKS, len(times) // BLOCK))
    slopes: list[float] = []
    while len(slopes) < RESAMPLES:
        drawn = np.concatenate([blocks[number] for number in draw.integers(len(blocks), size=len(blocks))])
        if times[drawn].any() and np.ptp(times[drawn]) > 0:  # through one moment alone no line says anything
            slopes.append(_slope(times[drawn], values[drawn]))
    low, high = np.quantile(slopes, (0.025, 0.975)).tolist()
    return Slope(_slope(times, values), low, high)


def _centred(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Less the mean of each life."""
    means = np.bincount(of, weights=values) / np.maximum(np.bincount(of), 1)
    return values - means[of]


def _slope(times: np.ndarray, sizes: np.ndarray) -> float:
    about = times - times.mean()
    return float(about @ sizes / (about @ about))
