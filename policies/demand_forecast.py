"""How much KV the rollouts of one generator will hold, from where they are now to the greatest length.

A demand is a curve along growth: after each bucket, how many of the rollouts will still be there, and how much do they
hold? It is the sum over rollouts of what `policies.length_prediction` expects of one of its group in its bucket.

Rollouts tell their lengths at the ends of turns. In between, they are taken to have grown as fast as turns on their
generator have lately.
"""

from __future__ import annotations

import numpy as np

from policies.group_lengths import Group
from policies.length_prediction import BUCKETS, LengthPrediction

SPEED_TURNS = 16
"""Ends of turns over which a generator's speed is averaged."""


class Session:
    """A rollout with a lease."""

    __slots__ = ("bucket", "group", "learned", "place", "time", "tokens")

    def __init__(self, group: Group, tokens: int, bucket: int, time: float) -> None:
        self.group, self.tokens, self.bucket, self.time = group, tokens, bucket, time
        """`tokens` is what it last told, at `time`; `bucket` is where it is taken to be."""
        self.learned = bucket
        """The bucket that the prediction knows it to have come to."""
        self.place = group.kind * BUCKETS + bucket
        """Its place in the prediction, as its generator's demand counts it."""


class Demand:
    """The future of one generator's rollouts."""

    __slots__ = ("_expected_peak", "_moments", "_seconds", "_speed", "_time", "_tokens", "_work", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        """By rollout, in the order in which they were let in; whoever adds or removes one says `enter` or `leave`."""
        self._moments = np.zeros((2, BUCKETS))
        """Mean and variance."""
        self._expected_peak: float | None = 0.0
        self._work: float | None = 0.0
        self._tokens, self._seconds = 0.0, 0.0
        """Of a turn and what was read before it, on average over the last ones."""
        self._speed = 0.0
        """Tokens a second by which a rollout grows."""
        self._time = 0.0
        """When it was last looked at how far rollouts may have come."""

    def expected_peak(self) -> float:
        """The highest point of the mean."""
        if self._expected_peak is None:
            self._expected_peak = float(self._moments[0].max())
        return self._expected_peak

    def work(self) -> float:
        """The area below the mean: tokens of KV that will be read, in buckets of growth, until all have ended."""
        if self._work is None:
            self._work = float(self._moments[0].sum())
        return self._work

    def peak_with(self, place: int, prediction: LengthPrediction, sigmas: float) -> float:
        """The highest point with one more rollout, which is in `place`, and `sigmas` standard deviations above it."""
        mean, variance = self._moments + prediction.by_place[place]
        # Sums that should be 0 may have become a little less.
        return float(np.maximum.reduce(mean + sigmas * np.sqrt(np.maximum(variance, 0.0))))

    def enter(self, place: int, prediction: LengthPrediction) -> None:
        """A rollout is in `place` now."""
        self._change(self._moments + prediction.by_place[place])

    def leave(self, place: int, prediction: LengthPrediction) -> None:
        """A rollout is no longer in `place`."""
        self._change(self._moments - prediction.by_place[place])

    def learn_speed(self, session: Session, tokens: int, now: float) -> None:
        """A rollout has come to `tokens` tokens.

        Tokens and seconds are averaged apart: of speeds, those of the many short turns would count most, and they are
        high, as a tool's response comes at once.
        """
        if now > session.time:
            share = 1 / SPEED_TURNS if self._seconds else 1.0
            self._tokens += share * (tokens - session.tokens - self._tokens)
            self._seconds += share * (now - session.time - self._seconds)
            self._speed = self._tokens / self._seconds

    def is_outdated(self, prediction: LengthPrediction, now: float) -> bool:
        """Whether rollouts may have come a good part of a bucket further since they were last counted."""
        return self._speed * (now - self._time) > prediction.width / 2

    def locate(self, prediction: LengthPrediction, now: float) -> None:
        """Find where the generator's rollouts are taken to be now."""
        speed, width, last = self._speed, prediction.width, BUCKETS - 1
        for session in self.sessions.values():
            bucket = round(session.tokens + speed * (now - session.time)) // width  # as `prediction.bucket` has it
            session.bucket = bucket if bucket < last else last
        self._time = now

    def recount(self, prediction: LengthPrediction) -> None:
        """The demand from where the generator's rollouts are taken to be, and what is known of their groups."""
        counts: dict[int, int] = {}
        for session in self.sessions.values():
            session.place = place = session.group.kind * BUCKETS + session.bucket
            counts[place] = counts.get(place, 0) + 1
        held = prediction.by_place[list(counts)].reshape(len(counts), 2 * BUCKETS)
        self._change((np.array(list(counts.values()), dtype=float) @ held).reshape(2, BUCKETS))

    def _change(self, moments: np.ndarray) -> None:
        """Replace the expectation. The array is not written to afterwards."""
        self._moments = moments
        self._expected_peak = self._work = None
