"""Predictive admission: as many rollouts as are expected to fit, from what their lengths have been so far.

A generator's demand is looked at along its rollouts' future: after each bucket of growth, how many of them will still
be there, and how much KV will they hold? A rollout is admitted while the highest point of that curve (mean plus
a margin of `sigmas` standard deviations) stays within the budget; the margin shrinks with the queue, since the last
ones in it would end up alone in the tail, which costs more than a few preemptions. Rollouts are sticky: KV never moves.

Rollouts tell their lengths at the ends of turns, and a turn may be most of a rollout. In between, they are taken to
have grown as fast as turns on their generator have lately. Rollouts of one group are alike: what some have shown tells
how much longer or shorter than others the rest become (`policies.group_lengths`).

A rollout goes to the generator that has the least work ahead, not to the one with the most room: how much longer a
generator has to go is what counts in the end.

Order: one rollout of each group first (probes), then groups by the longest rollout that they have shown, longest first,
so that long ones do not end up alone in the tail; every `OLDEST_EVERY`-th grant goes to whoever has waited longest.

Invariants, beside those of `policies.balancing`:
- when a lease is granted, the generator's expected peak is within its budget, or the lease is its only one;
- nobody waits beside an idle generator;
- a wish is overtaken by at most `OLDEST_EVERY` later ones for each wish that stands before it.
"""

from __future__ import annotations

from policies.admission_queue import AdmissionQueue
from policies.balancing import BalancerOptions, Capacity, Lease, Wish
from policies.demand_forecast import Demand, Session
from policies.group_lengths import Group, Groups
from policies.lease_books import GeneratorBooks, LeaseBooks
from policies.length_prediction import BUCKETS, LengthPrediction

OLDEST_EVERY = 8
FULL_MARGIN_FROM = 0.5
"""Rollouts that wait for each one that runs: with fewer, the margin shrinks in proportion."""
REFRESH_EVERY = 64
"""Ends of rollouts after which predictions are made anew; sooner while few have been seen."""
REFRESH_SHARE = 1 / 32
"""Once this share of the ends seen is more than `REFRESH_EVERY`, it takes as many: fewer change a prediction little."""

KNOWN_GROUPS = 2
"""When so many groups are known for each rollout that waits or runs (and some more), those that are over are forgotten.
"""


class Predictive(LeaseBooks):
    """See the module's docstring."""

    wants_progress = True

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        super().__init__(options, epoch)
        self._lengths: LengthPrediction | None = None
        self._demands: dict[str, Demand] = {}
        self._sessions: dict[str, Session] = {}
        self._groups = Groups()
        self._queue = AdmissionQueue()
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
                self._lengths.started(session.bucket)
        self._demands[capacity.generator] = Demand()
        self._predict_anew()

    def generator_left(self, generator: str) -> tuple[str, ...]:
        ended = super().generator_left(generator)
        for rollout in ended:
            self._prediction.lost(self._sessions.pop(rollout).learned)
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
        demand.learn_speed(session, tokens, self._time)
        session.tokens, session.time = tokens, self._time
        session.bucket = bucket = self._bucket_of(tokens)
        if bucket != session.learned:
            self._prediction.passed(session.learned, bucket)
            session.learned = bucket
        place = session.group.kind * BUCKETS + bucket
        if place != session.place:
            demand.leave(session.place, self._prediction)
            session.place = place
            demand.enter(place, self._prediction)
            self.rank_anew(name)
        self._look_at(name)
        # Nobody is let in for this, though the peak may be lower now: the next end of a rollout is soon enough. In
        # 2,048 simulated rollouts on 8 engines (`rl-1` of rstar2-14b-8gpu) to look at once made the step 5% longer
        # (seen with an earlier prediction).

    def release(self, rollout: str, tokens: int | None = None) -> None:
        lease = self._leases.get(rollout)
        super().release(rollout, tokens)
        if lease is None:
            return
        demand = self._demands[lease.generator]
        del demand.sessions[rollout]
        session = self._sessions.pop(rollout)
        demand.leave(session.place, self._prediction)  # it is ranked anew since the lease has ended
        self._look_at(lease.generator)
        if tokens is None:
            self._prediction.lost(session.learned)
        else:
            if tokens > session.tokens:
                demand.learn_speed(session, tokens, self._time)
            bucket = self._bucket_of(tokens)
            self._prediction.passed(session.learned, bucket)
            self._prediction.ended(bucket)
            session.group.has_ended(self._prediction.risk[bucket])
            self._queue.ended(session.group.name, tokens)
            self._ends += 1
            if self._ends >= self._next_refresh:
                self._next_refresh = self._ends + max(min(REFRESH_EVERY, self._ends), int(self._ends * REFRESH_SHARE))
                self._predict_anew()

    # --- admission -------------------------------------------------------------------------------

    def promised_by(self, books: GeneratorBooks) -> int:
        return round(self._demands[books.name].expected_peak())

    def rank(self, books: GeneratorBooks) -> tuple[bool, float, int, int]:
        """The least work ahead first, for its KV cache, counted in whole rollouts.

        Smaller differences mean little. Generators that are equal take turns, which spreads each group over all of
        them.
        """
        rollouts = self._demands[books.name].work() // self._prediction.fresh_work
        return bool(books.leases), rollouts / books.budget, books.chosen, books.joined

    def choose(self, wish: Wish) -> GeneratorBooks | None:
        """The generator with the least work ahead, if it is expected to have room; an idle one always takes a wish."""
        best = super().choose(wish)
        if best is None or not best.leases:
            return best
        place = self._groups.kind(wish.group) * BUCKETS + self._bucket_of(wish.prompt_tokens)
        peak = self._demands[best.name].peak_with(place, self._prediction, self._sigmas())
        return best if peak <= best.budget else None

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
        # Who stands alone is compared with nobody.
        group = self._groups.named(wish.group) if wish.group else Group(wish.rollout)
        session = Session(group, wish.prompt_tokens, self._bucket_of(wish.prompt_tokens), self._time)
        demand = self._demands[books.name]
        self._sessions[wish.rollout] = demand.sessions[wish.rollout] = session
        self._prediction.started(session.bucket)
        demand.enter(session.place, self._prediction)  # ranked anew, as it has one lease more
        if self._queue.known_groups > KNOWN_GROUPS * (len(self._sessions) + len(self._waiting)) + REFRESH_EVERY:
            self._forget_finished_groups()
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

    def _predict_anew(self) -> None:
        """Look at everything again: lengths, groups, demands."""
        for demand in self._demands.values():
            demand.locate(self._prediction, self._time)
        supposed = [0] * BUCKETS
        for session in self._sessions.values():
            supposed[session.bucket] += 1
        self._prediction.refresh(supposed)
        risk = self._prediction.risk
        self._groups.compare((session.group, risk[session.bucket]) for session in self._sessions.values())
        for name, demand in self._demands.items():
            demand.recount(self._prediction)
            self.rank_anew(name)

    def _look_at(self, name: str) -> None:
        """Bring a generator's demand up to the time, if its rollouts may have come much further."""
        demand = self._demands[name]
        if demand.is_outdated(self._prediction, self._time):
            demand.locate(self._prediction, self._time)
            demand.recount(self._prediction)
            self.rank_anew(name)

    def _forget_finished_groups(self) -> None:
        alive = {session.group.name for session in self._sessions.values()}
        self._queue.forget_finished_groups(alive)
        self._groups.forget_all_but(alive | self._queue.groups())
