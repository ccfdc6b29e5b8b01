"""Predictive admission: as many rollouts as are expected to fit, from what their lengths have been so far.

A generator's demand is looked at along its rollouts' future: after each bucket of growth, how many of them will still
be there, and how much KV will they hold? A rollout is admitted while the highest point of that curve (mean plus
a margin of `sigmas` standard deviations) stays within the budget; the margin shrinks with the queue, since the last
ones in it would end up alone in the tail, which costs more than a few preemptions. Rollouts are sticky: KV never moves.

Rollouts tell their lengths at the ends of turns, and a turn may be most of a rollout. In between, they are taken to
have grown as fast as turns on their generator have lately.

Order: one rollout of each group first (probes), then groups by the longest rollout that they have shown, longest first,
so that long ones do not end up alone in the tail; every `OLDEST_EVERY`-th grant goes to whoever has waited longest.

Invariants, beside those of `policies.balancing`:
- when a lease is granted, the generator's expected peak is within its budget, or the lease is its only one;
- nobody waits beside an idle generator;
- a wish is overtaken by at most `OLDEST_EVERY` later ones for each wish that stands before it.
"""

from __future__ import annotations

import heapq

import numpy as np

from policies.balancing import BalancerOptions, Capacity, Lease, Wish
from policies.lease_books import GeneratorBooks, LeaseBooks
from policies.length_prediction import BUCKETS, LengthPrediction

OLDEST_EVERY = 8
FULL_MARGIN_FROM = 0.5
"""Rollouts that wait for each one that runs: with fewer, the margin shrinks in proportion."""
REFRESH_EVERY = 64
"""Ends of rollouts after which predictions are made anew; sooner while few have been seen."""
REFRESH_SHARE = 1 / 32
"""Once this share of the ends seen is more than `REFRESH_EVERY`, it takes as many: fewer change a prediction little."""


class _Demand:
    """The future of one generator's rollouts."""

    __slots__ = ("_expected_peak", "_peak", "mean", "sigmas", "speed", "time", "variance")

    def __init__(self, sigmas: float) -> None:
        self.mean, self.variance = np.zeros(BUCKETS), np.zeros(BUCKETS)
        self.sigmas = sigmas
        self._peak: float | None = 0.0
        self._expected_peak: float | None = 0.0
        self.speed = 0.0
        """Tokens a second by which a rollout grows."""
        self.time = 0.0
        """When it was last looked at how far rollouts may have come."""

    def change(self, mean: np.ndarray, variance: np.ndarray) -> None:
        """Replace the expectation. The arrays are not written to afterwards."""
        self.mean, self.variance = mean, variance
        self._peak = self._expected_peak = None

    def peak(self) -> float:
        """The highest point, margin included; found when somebody wants to know it."""
        if self._peak is None:
            self._peak = _peak(self.mean, self.variance, self.sigmas)
        return self._peak

    def expected_peak(self) -> float:
        """The highest point of the mean."""
        if self._expected_peak is None:
            self._expected_peak = float(self.mean.max())
        return self._expected_peak


class _Session:
    """A rollout with a lease."""

    __slots__ = ("bucket", "group", "learned", "time", "tokens")

    def __init__(self, group: str, tokens: int, bucket: int, time: float) -> None:
        self.group, self.tokens, self.bucket, self.time = group, tokens, bucket, time
        """`tokens` is what it last told, at `time`; `bucket` is where it is taken to be."""
        self.learned = bucket
        """The bucket up to which the prediction has learned from it."""


class _Queue:
    """Who is next among the waiting."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Wish]] = {}
        self._probes: dict[str, None] = {}
        """Groups of which none has started yet, in order of arrival."""
        self._started: set[str] = set()
        self._longest: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._arrivals = 0

    def add(self, wish: Wish) -> None:
        group = _group_of(wish)
        members = self._groups.setdefault(group, {})
        if not members:
            if group in self._started:
                self._push(group)
            else:
                self._probes[group] = None
        members[wish.rollout] = wish

    def remove(self, wish: Wish) -> None:
        group = _group_of(wish)
        members = self._groups[group]
        del members[wish.rollout]
        if not members:
            del self._groups[group]
            self._probes.pop(group, None)

    def started(self, wish: Wish) -> None:
        """The wish was granted (and removed)."""
        group = _group_of(wish)
        self._probes.pop(group, None)
        self._started.add(group)
        if group in self._groups:
            self._push(group)

    def ended(self, group: str, tokens: int) -> None:
        """A rollout of the group came to `tokens` tokens."""
        if tokens > self._longest.get(group, 0):
            self._longest[group] = tokens
            if group in self._groups and group not in self._probes:
                self._push(group)

    def forget_finished_groups(self, alive: set[str]) -> None:
        """Drop what is known of groups that neither wait nor run."""
        keep = alive | self._groups.keys()
        self._started &= keep
        self._longest = {group: tokens for group, tokens in self._longest.items() if group in keep}

    def first(self) -> Wish:
        for group in self._probes:
            return next(iter(self._groups[group].values()))
        while True:
            key, _, group = self._heap[0]
            if group in self._groups and group not in self._probes and key == self._key(group):
                return next(iter(self._groups[group].values()))
            heapq.heappop(self._heap)  # outdated

    def _push(self, group: str) -> None:
        self._arrivals += 1
        heapq.heappush(self._heap, (self._key(group), self._arrivals, group))

    def _key(self, group: str) -> int:
        """Groups that have shown no length yet may be the longest."""
        return -self._longest[group] if group in self._longest else -(1 << 62)


def _group_of(wish: Wish) -> str:
    return wish.group or wish.rollout


class Predictive(LeaseBooks):
    """See the module's docstring."""

    wants_progress = True

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        super().__init__(options, epoch)
        self._lengths: LengthPrediction | None = None
        self._demands: dict[str, _Demand] = {}
        self._sessions: dict[str, _Session] = {}
        self._queue = _Queue()
        self._time = 0.0
        self._ends = 0
        self._next_refresh = 1

    # --- the protocol ----------------------------------------------------------------------------

    def time_is(self, seconds: float) -> None:
        self._time = seconds

    def generator_joined(self, capacity: Capacity) -> None:
        super().generator_joined(capacity)
        if self._lengths is None or capacity.max_sequence_tokens > self._lengths.width * BUCKETS:
            self._lengths = LengthPrediction(capacity.max_sequence_tokens)
            for session in self._sessions.values():
                session.bucket = session.learned = self._bucket_of(session.tokens)
        self._demands[capacity.generator] = _Demand(self.options.sigmas)
        self._predict_anew()

    def generator_left(self, generator: str) -> tuple[str, ...]:
        ended = super().generator_left(generator)
        for rollout in ended:
            del self._sessions[rollout]
        self._demands.pop(generator, None)
        return ended

    def wish(self, wish: Wish) -> None:
        known = len(self._waiting)
        super().wish(wish)
        if len(self._waiting) > known:
            self._queue.add(wish)
            self._changed |= self.first() is wish  # and not who was turned away

    def withdraw(self, rollout: str) -> None:
        wish = self._waiting.get(rollout)
        super().withdraw(rollout)
        if wish is not None:
            self._queue.remove(wish)

    def progressed(self, rollout: str, tokens: int) -> None:
        session = self._sessions.get(rollout)
        if session is None or tokens <= session.tokens:
            return
        name = self._leases[rollout].generator
        demand = self._demands[name]
        self._learn_speed(demand, session, tokens)
        session.tokens, session.time = tokens, self._time
        bucket = self._bucket_of(tokens)
        self._learn(session, bucket)
        if bucket != session.bucket:
            self._leave(demand, session.bucket)
            session.bucket = bucket
            self._enter(demand, bucket)
        self._look_at(name)
        # Nobody is let in for this, though the peak may be lower now: the next end of a rollout is soon enough. In
        # 2,048 simulated rollouts on 8 engines (`rl-1` of rstar2-14b-8gpu) to look at once made the step 5% longer.

    def release(self, rollout: str, tokens: int | None = None) -> None:
        lease = self._leases.get(rollout)
        super().release(rollout, tokens)
        if lease is None:
            return
        session = self._sessions.pop(rollout)
        demand = self._demands[lease.generator]
        self._leave(demand, session.bucket)
        self._look_at(lease.generator)
        if tokens is not None:
            if tokens > session.tokens:
                self._learn_speed(demand, session, tokens)
            self._learn(session, self._bucket_of(tokens))
            self._prediction.ended(self._bucket_of(tokens))
            self._queue.ended(session.group, tokens)
            self._ends += 1
            if self._ends >= self._next_refresh:
                self._next_refresh = self._ends + max(min(REFRESH_EVERY, self._ends), int(self._ends * REFRESH_SHARE))
                self._predict_anew()
                self._queue.forget_finished_groups({session.group for session in self._sessions.values()})

    # --- admission -------------------------------------------------------------------------------

    def promised_by(self, books: GeneratorBooks) -> int:
        return round(self._demands[books.name].expected_peak())

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        """The generator with the most predicted room, if that is enough; an idle one always takes a wish."""
        best, least = None, (True, 0.0, 0)
        demands = self._demands
        for books in self.holders(wish):
            rank = (bool(books.leases), demands[books.name].peak() / books.budget, books.chosen)
            if best is None or rank < least:
                best, least = books, rank
        if best is None or not best.leases:
            return best
        demand, bucket = self._demands[best.name], self._bucket_of(wish.prompt_tokens)
        mean = demand.mean + self._prediction.mean[bucket]
        variance = demand.variance + self._prediction.variance[bucket]
        return best if _peak(mean, variance, self._sigmas()) <= best.budget else None

    def _sigmas(self) -> float:
        """The margin for those who wait now.

        Holding rollouts back costs nothing while others keep the engines full, but the last ones in the queue would
        end up alone in the tail, and that costs more than a few preemptions. While fewer have ended than run, lengths
        are known too badly for that.
        """
        if self._ends < len(self._leases):
            return self.options.sigmas
        behind = len(self._waiting) / max(1, len(self._leases))
        return self.options.sigmas * min(1.0, behind / FULL_MARGIN_FROM)

    def grant(self, wish: Wish, books: GeneratorBooks) -> Lease:
        lease = super().grant(wish, books)
        self._queue.remove(wish)
        self._queue.started(wish)
        session = _Session(_group_of(wish), wish.prompt_tokens, self._bucket_of(wish.prompt_tokens), self._time)
        self._sessions[wish.rollout] = session
        self._enter(self._demands[books.name], session.bucket)
        return lease

    def first(self) -> Wish:
        oldest = self._choices % OLDEST_EVERY == OLDEST_EVERY - 1
        return super().first() if oldest else self._queue.first()

    # --- prediction ------------------------------------------------------------------------------

    @property
    def _prediction(self) -> LengthPrediction:
        assert self._lengths is not None, "no generator has joined yet"
        return self._lengths

    def _bucket_of(self, tokens: int) -> int:
        return self._prediction.bucket(tokens)

    def _learn_speed(self, demand: _Demand, session: _Session, tokens: int) -> None:
        """A rollout has come to `tokens` tokens."""
        if self._time > session.time:
            speed = (tokens - session.tokens) / (self._time - session.time)
            demand.speed += (speed - demand.speed) / 16 if demand.speed else speed

    def _learn(self, session: _Session, bucket: int) -> None:
        if bucket > session.learned:
            self._prediction.passed(session.learned, bucket)
            session.learned = bucket

    def _enter(self, demand: _Demand, bucket: int) -> None:
        prediction = self._prediction
        demand.change(demand.mean + prediction.mean[bucket], demand.variance + prediction.variance[bucket])

    def _leave(self, demand: _Demand, bucket: int) -> None:
        prediction = self._prediction
        demand.change(demand.mean - prediction.mean[bucket], demand.variance - prediction.variance[bucket])

    def _predict_anew(self) -> None:
        self._prediction.refresh()
        for name in self._books:
            self._recount(name)

    def _look_at(self, name: str) -> None:
        """Bring a generator's demand up to the time, if its rollouts may have come a good part of a bucket further."""
        demand = self._demands[name]
        if demand.speed * (self._time - demand.time) > self._prediction.width / 2:
            self._recount(name)

    def _recount(self, name: str) -> None:
        """A generator's demand from where its rollouts are taken to be now."""
        demand, prediction = self._demands[name], self._prediction
        counts, speed, now = [0] * BUCKETS, demand.speed, self._time
        sessions, bucket_of = self._sessions, prediction.bucket
        for rollout in self._books[name].leases:
            session = sessions[rollout]
            session.bucket = bucket = bucket_of(round(session.tokens + speed * (now - session.time)))
            if bucket > session.learned:
                self._learn(session, bucket)
            counts[bucket] += 1
        demand.time = now
        shares = np.array(counts, dtype=float)
        demand.change(shares @ prediction.mean, shares @ prediction.variance)


def _peak(mean: np.ndarray, variance: np.ndarray, sigmas: float) -> float:
    """The highest point of a demand; sums that should be 0 may have become a little less."""
    return float((mean + sigmas * np.sqrt(np.maximum(variance, 0.0))).max())
