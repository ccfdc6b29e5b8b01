"""How much KV the rollouts of one generator will hold, from where they are now to the greatest length.

A demand is a curve along growth: after each bucket, how many of the rollouts will still be there, and how much do they
hold? It is the sum over rollouts of what `policies.length_prediction` expects of one in its bucket.

Rollouts tell their lengths at the ends of turns. In between, they are taken to have grown as fast as turns on their
generator have lately.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from policies.length_prediction import BUCKETS, LengthPrediction


class Session:
    """A rollout with a lease."""

    __slots__ = ("bucket", "group", "learned", "time", "tokens")

    def __init__(self, group: str, tokens: int, bucket: int, time: float) -> None:
        self.group, self.tokens, self.bucket, self.time = group, tokens, bucket, time
        """`tokens` is what it last told, at `time`; `bucket` is where it is taken to be."""
        self.learned = bucket
        """The bucket up to which the prediction has learned from it."""

    def came_to(self, bucket: int, prediction: LengthPrediction) -> None:
        """Let the prediction learn that the rollout got to `bucket`."""
        if bucket > self.learned:
            prediction.passed(self.learned, bucket)
            self.learned = bucket


class Demand:
    """The future of one generator's rollouts; `sigmas` standard deviations are the margin of its peak."""

    __slots__ = ("_expected_peak", "_moments", "_peak", "_sigmas", "_speed", "_time")

    def __init__(self, sigmas: float) -> None:
        self._moments = np.zeros((2, BUCKETS))
        """Mean and variance."""
        self._sigmas = sigmas
        self._peak: float | None = 0.0
        self._expected_peak: float | None = 0.0
        self._speed = 0.0
        """Tokens a second by which a rollout grows."""
        self._time = 0.0
        """When it was last looked at how far rollouts may have come."""

    def peak(self) -> float:
        """The highest point, margin included; found when somebody wants to know it."""
        if self._peak is None:
            self._peak = _peak(self._moments, self._sigmas)
        return self._peak

    def expected_peak(self) -> float:
        """The highest point of the mean."""
        if self._expected_peak is None:
            self._expected_peak = float(self._moments[0].max())
        return self._expected_peak

    def peak_with(self, bucket: int, prediction: LengthPrediction, sigmas: float) -> float:
        """The highest point with one more rollout, which is in `bucket`, and another margin."""
        return _peak(self._moments + prediction.moments[bucket], sigmas)

    def enter(self, bucket: int, prediction: LengthPrediction) -> None:
        """A rollout is in `bucket` now."""
        self._change(self._moments + prediction.moments[bucket])

    def leave(self, bucket: int, prediction: LengthPrediction) -> None:
        """A rollout is no longer in `bucket`."""
        self._change(self._moments - prediction.moments[bucket])

    def learn_speed(self, session: Session, tokens: int, now: float) -> None:
        """A rollout has come to `tokens` tokens."""
        if now > session.time:
            speed = (tokens - session.tokens) / (now - session.time)
            self._speed += (speed - self._speed) / 16 if self._speed else speed

    def is_outdated(self, prediction: LengthPrediction, now: float) -> bool:
        """Whether rollouts may have come a good part of a bucket further since they were last counted."""
        return self._speed * (now - self._time) > prediction.width / 2

    def recount(self, sessions: Iterable[Session], prediction: LengthPrediction, now: float) -> None:
        """The demand from where the generator's rollouts are taken to be now."""
        counts, speed, width, last = [0] * BUCKETS, self._speed, prediction.width, BUCKETS - 1
        for session in sessions:
            bucket = round(session.tokens + speed * (now - session.time)) // width  # as `prediction.bucket` has it
            if bucket > last:
                bucket = last
            session.bucket = bucket
            if bucket > session.learned:
                session.came_to(bucket, prediction)
            counts[bucket] += 1
        self._time = now
        shares = np.array(counts, dtype=float)
        self._change(np.stack((shares @ prediction.mean, shares @ prediction.variance)))

    def _change(self, moments: np.ndarray) -> None:
        """Replace the expectation. The array is not written to afterwards."""
        self._moments = moments
        self._peak = self._expected_peak = None


def _peak(moments: np.ndarray, sigmas: float) -> float:
    """The highest point of a demand; sums that should be 0 may have become a little less."""
    mean, variance = moments
    return float(np.maximum.reduce(mean + sigmas * np.sqrt(np.maximum(variance, 0.0))))
