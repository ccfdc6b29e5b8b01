"""How long rollouts become, learned from those that were seen: a Kaplan-Meier estimate over buckets of tokens.

Rollouts that are still running count for as far as they have come. Finished ones alone are mostly short at the start of
a step, and whoever looks at them only promises too much. All of a step's rollouts may be in the same bucket when the
first of them ends there: those who are in it count as half exposed to it, as in a life table, or it would seem that
nobody gets through.

Where few have been yet, a bucket's share of ends is taken to be the prior's, times what the ends in the buckets before
it were of the prior's there; the farther on, the less of that.

Invariants: survival never rises with length, is 1 at the start and 0 beyond the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.group_lengths import FACTORS, KINDS, USUAL

BUCKETS = 64
PRIOR_ENDS = 1.8 * np.diff((np.arange(BUCKETS + 1) / BUCKETS) ** 2.5)
"""By bucket, the share of those who come to it that end in it, before anything is known. Ends become more likely with
length, as Weibull's distribution has it; a sixth comes to the greatest length."""
PRIOR_WEIGHT = 3.0
"""Ends to be expected by the prior in the buckets before, for what was seen there to count as much as the prior."""
LEAST_FACTOR, LARGEST_SHARE = 0.2, 0.1
"""What is made of the prior is no less than this much of it, and no more than this share of those who come."""
REACH = 0.9
"""What is seen in a bucket counts this much less for each bucket farther on."""
NEIGHBOURS_WEIGHT = 50.0
"""Rollouts that have to be seen in a bucket for it to say as much about itself as those before it do: one of a few that
ran ahead of the others and ended says little."""
FORGET_AFTER = 8192
"""Ends seen, after which older ones count half: lengths change while a model learns."""

_BUCKET = np.arange(BUCKETS)
_LATER = np.minimum(_BUCKET[:, None] + _BUCKET, BUCKETS - 1)
"""`[now, ahead]`: the bucket that is `ahead` after `now`."""
_THERE = _BUCKET[:, None] + _BUCKET < BUCKETS
"""Whether there is one."""


class LengthPrediction:
    """See the module's docstring.

    Args:
        longest: tokens that no sequence exceeds.
    """

    def __init__(self, longest: int) -> None:
        self.width = -(-longest // BUCKETS)
        """Tokens of a bucket."""
        self._ended = np.zeros(BUCKETS)
        self._passed = np.zeros(BUCKETS)
        self._here = [0] * BUCKETS
        """Rollouts that run, by the bucket that they are known to have come to."""
        self._ends_in = [0] * BUCKETS
        self._starts_less_stops = [0] * BUCKETS
        """What has been seen since it was last added to the arrays, as adding single ones to lists is cheaper. The
        running sum of the second is how many passed."""
        self._ends = 0
        self._tokens = (_LATER + 1.0) * self.width * _THERE
        self._squares = self._tokens**2
        self.moments = np.zeros((KINDS, BUCKETS, 2, BUCKETS))
        """`[kind, now, :, ahead]`: expected tokens of KV of a rollout of such a group in bucket `now`, `ahead` buckets
        of growth later, and the variance."""
        self.by_place = self.moments.reshape(KINDS * BUCKETS, 2, BUCKETS)
        """The same by place: `kind * BUCKETS + now`."""
        self.risk: list[float] = []
        """By bucket, how many ends were to be expected of a rollout that has come to it."""
        self.fresh_work = 0.0
        """The area below the expected tokens of a rollout of the usual kind in the first bucket."""
        self.refresh(self._here)

    def bucket(self, tokens: int) -> int:
        bucket = tokens // self.width
        return bucket if bucket < BUCKETS else BUCKETS - 1

    def started(self, bucket: int) -> None:
        """A rollout begins in this bucket."""
        self._here[bucket] += 1

    def passed(self, start: int, end: int) -> None:
        """A rollout grew from bucket `start` to bucket `end`."""
        self._starts_less_stops[start] += 1
        self._starts_less_stops[end] -= 1
        self._here[start] -= 1
        self._here[end] += 1

    def lost(self, bucket: int) -> None:
        """A rollout that had come to this bucket is gone, but not at its end."""
        self._here[bucket] -= 1

    def ended(self, bucket: int) -> None:
        """A rollout came to its end in `bucket`."""
        self._here[bucket] -= 1
        self._ends_in[bucket] += 1
        self._ends += 1
        if self._ends == FORGET_AFTER:
            self._ends = 0
            self._add_up()
            self._ended *= 0.5
            self._passed *= 0.5

    def survival(self, supposed: Sequence[int]) -> np.ndarray:
        """`[BUCKETS]`: the share of rollouts that reach each bucket.

        Args:
            supposed: how many of the rollouts that run are taken to be in each bucket now.
        """
        self._add_up()
        running = np.array(supposed, dtype=float)
        passing = self._passed + np.maximum(0.0, np.cumsum(self._here - running))
        seen = passing + 0.5 * running + self._ended
        stays, ended_before, expected_before = [1.0], 0.0, 0.0
        for ended, there, prior in zip(self._ended.tolist(), seen.tolist(), PRIOR_ENDS.tolist(), strict=True):
            factor = (ended_before + PRIOR_WEIGHT) / (expected_before + PRIOR_WEIGHT)
            share = min(prior * max(LEAST_FACTOR, factor), LARGEST_SHARE)
            stays.append(1.0 - (ended + NEIGHBOURS_WEIGHT * share) / (there + NEIGHBOURS_WEIGHT))
            ended_before = REACH * (ended_before + ended)
            expected_before = REACH * (expected_before + there * prior)
        return np.cumprod(stays[:-1])

    def _add_up(self) -> None:
        """Put what has been seen into the arrays."""
        self._ended += self._ends_in
        self._passed += np.cumsum(self._starts_less_stops)
        self._ends_in, self._starts_less_stops = [0] * BUCKETS, [0] * BUCKETS

    def refresh(self, supposed: Sequence[int]) -> None:
        """Bring `moments`, `risk` and `fresh_work` up to what has been seen; `supposed` as in `survival`."""
        risk = -np.log(np.maximum(self.survival(supposed), 1e-300))
        self.risk = risk.tolist()
        ahead = risk[:, None] - risk[_LATER]
        for factor, moments in zip(FACTORS, self.moments, strict=True):
            alive = np.exp(factor * ahead)
            moments[:, 0] = alive * self._tokens
            moments[:, 1] = (alive - alive * alive) * self._squares
        self.fresh_work = float(self.by_place[USUAL * BUCKETS, 0].sum())
