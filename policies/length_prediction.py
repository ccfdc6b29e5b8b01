"""How long rollouts become, learned from those that were seen: a Kaplan-Meier estimate over buckets of tokens.

Rollouts that are still running count for as far as they have come. Finished ones alone are mostly short at the start of
a step, and whoever looks at them only promises too much.

Invariants: survival never rises with length, is 1 at the start and 0 beyond the longest sequence.
"""

from __future__ import annotations

import numpy as np

BUCKETS = 64
PRIOR_WEIGHT = 2.0
"""How many imagined rollouts each bucket begins with."""
PRIOR_HAZARD = 0.6 / BUCKETS
"""Share of these that end in the bucket. Few: rollouts are taken for longer than they are until some have been seen, as
admitting too few for a while costs less than preempting half of them."""
FORGET_AFTER = 8192
"""Ends seen, after which older ones count half: lengths change while a model learns."""


class LengthPrediction:
    """See the module's docstring.

    Args:
        longest: tokens that no sequence exceeds.
    """

    def __init__(self, longest: int) -> None:
        self.width = -(-longest // BUCKETS)
        """Tokens of a bucket."""
        self._ended = np.full(BUCKETS, PRIOR_WEIGHT * PRIOR_HAZARD)
        self._passed = np.full(BUCKETS, PRIOR_WEIGHT * (1 - PRIOR_HAZARD))
        self._ends_in = [0] * BUCKETS
        self._starts_less_stops = [0] * BUCKETS
        """What has been seen since it was last added to the arrays, as adding single ones to lists is cheaper. The
        running sum of the second is how many passed."""
        self._ends = 0
        self.mean = np.zeros((BUCKETS, BUCKETS))
        """`[now, ahead]`: expected tokens of KV of a rollout in bucket `now`, `ahead` buckets of growth later."""
        self.variance = np.zeros((BUCKETS, BUCKETS))
        self.moments = np.zeros((BUCKETS, 2, BUCKETS))
        """`[now]`: both, for those who add them up together."""
        self.refresh()

    def bucket(self, tokens: int) -> int:
        bucket = tokens // self.width
        return bucket if bucket < BUCKETS else BUCKETS - 1

    def passed(self, start: int, end: int) -> None:
        """A rollout grew from bucket `start` to bucket `end`."""
        self._starts_less_stops[start] += 1
        self._starts_less_stops[end] -= 1

    def ended(self, bucket: int) -> None:
        """A rollout came to its end in `bucket`."""
        self._ends_in[bucket] += 1
        self._ends += 1
        if self._ends == FORGET_AFTER:
            self._ends = 0
            self._add_up()
            self._ended *= 0.5
            self._passed *= 0.5

    def survival(self) -> np.ndarray:
        """`[BUCKETS]`: the share of rollouts that reach each bucket."""
        self._add_up()
        stays = self._passed / (self._passed + self._ended)
        return np.concatenate(([1.0], np.cumprod(stays[:-1])))

    def _add_up(self) -> None:
        """Put what has been seen into the arrays."""
        self._ended += self._ends_in
        self._passed += np.cumsum(self._starts_less_stops)
        self._ends_in, self._starts_less_stops = [0] * BUCKETS, [0] * BUCKETS

    def refresh(self) -> None:
        """Bring `mean` and `variance` up to what has been seen."""
        reach = self.survival()
        for now in range(BUCKETS):
            later = BUCKETS - now
            alive = reach[now:] / reach[now]
            tokens = (np.arange(now, BUCKETS) + 1.0) * self.width
            self.mean[now, :later] = alive * tokens
            self.variance[now, :later] = alive * (1 - alive) * tokens**2
        self.moments[:, 0], self.moments[:, 1] = self.mean, self.variance
