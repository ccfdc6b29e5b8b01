"""The balancer: grants leases on generators' KV cache as a strategy decides.

Invariants:
- no handler waits for capacity: a wish is noted, and its asker is answered when the strategy grants it;
- while the gate is closed nothing is granted; closing is answered when every lease has come back;
- a lease is released exactly once, by its rollout, or with its generator;
- whoever waits at a turn barrier is answered when the strategy says so, or when the lease ends.
"""

from __future__ import annotations

import asyncio
import logging

from actors.messages import (
    AcquireLease,
    BalancerStatus,
    BeginTurn,
    CloseGate,
    DescribeBalancer,
    JoinGenerator,
    LeaseGranted,
    LeaveGenerator,
    OpenGate,
    ReleaseLease,
    ReleaseOwner,
    TurnEnded,
)
from actors.supervision import owner_of
from actors.system.actor import Actor, handles
from actors.system.message import Done
from policies.balancing import BalancerOptions, Lease, Strategy, Unplaceable
from policies.balancing_strategies import make_strategy

log = logging.getLogger(__name__)


class BalancerActor(Actor):
    """Drives one strategy of `policies.balancing_strategies`."""

    def __init__(self, *, options: BalancerOptions) -> None:
        self._options = options
        self._asked: dict[str, asyncio.Future[LeaseGranted]] = {}
        self._leases: dict[str, Lease] = {}
        self._at_barrier: dict[str, asyncio.Future[Done]] = {}
        self._turns_begun: dict[str, int] = {}
        self._open = True
        self._drained = asyncio.Event()
        self._drained.set()
        self._granted_total = self._queued_total = self._peak = 0

    async def start(self) -> None:
        self._strategy = make_strategy(self._options, epoch=self.port.incarnation)

    @handles(JoinGenerator)
    async def on_join(self, request: JoinGenerator) -> Done:
        known = {load.capacity.generator: load.capacity for load in self._strategy.loads()}
        if known.get(request.capacity.generator) != request.capacity:  # not asked again after a resend
            self._end_leases(self._at_this_time().generator_left(request.capacity.generator))
            self._strategy.generator_joined(request.capacity)
            self._go_on()
        return Done()

    @handles(LeaveGenerator)
    async def on_leave(self, request: LeaveGenerator) -> Done:
        for load in self._strategy.loads():
            capacity = load.capacity
            if capacity.generator == request.generator and request.incarnation in (None, capacity.incarnation):
                self._end_leases(self._at_this_time().generator_left(request.generator))
                self._go_on()
        return Done()

    @handles(AcquireLease)
    async def on_acquire(self, request: AcquireLease) -> LeaseGranted:
        rollout = request.wish.rollout
        if rollout in self._leases:  # asked again after a resend
            return LeaseGranted(lease=self._leases[rollout])
        if rollout not in self._asked:
            try:
                self._at_this_time().wish(request.wish)
            except Unplaceable as refusal:
                return LeaseGranted(lease=None, refusal=str(refusal))
            self._go_on()
            if rollout in self._leases:
                return LeaseGranted(lease=self._leases[rollout])
            self._asked[rollout] = asyncio.get_running_loop().create_future()
            self._queued_total += 1
        return await asyncio.shield(self._asked[rollout])

    @handles(ReleaseLease)
    async def on_release(self, message: ReleaseLease) -> None:
        self._release(message.rollout, message.tokens)
        self._go_on()

    @handles(ReleaseOwner)
    async def on_release_owner(self, message: ReleaseOwner) -> None:
        for rollout in [rollout for rollout in (*self._asked, *self._leases) if owner_of(rollout) == message.owner]:
            self._release(rollout, None)
        self._go_on()

    def _release(self, rollout: str, tokens: int | None) -> None:
        self._strategy.withdraw(rollout)
        waiting = self._asked.pop(rollout, None)
        if waiting is not None:
            waiting.cancel()
        self._at_this_time().release(rollout, tokens)
        self._end_leases((rollout,))

    @handles(TurnEnded)
    async def on_turn_ended(self, message: TurnEnded) -> None:
        self._at_this_time().progressed(message.rollout, message.tokens)
        self._go_on()

    @handles(BeginTurn)
    async def on_begin_turn(self, request: BeginTurn) -> Done:
        rollout = request.rollout
        if rollout not in self._leases or self._turns_begun.get(rollout, 0) >= request.turn:
            return Done()  # its generator is gone and will not answer it; or asked again after a resend
        if rollout not in self._at_barrier:
            self._at_barrier[rollout] = asyncio.get_running_loop().create_future()
            self._strategy.turn_wish(rollout)
        waiting = self._at_barrier[rollout]
        self._go_on()
        await asyncio.shield(waiting)
        if rollout in self._leases:
            self._turns_begun[rollout] = request.turn
        return Done()

    @handles(CloseGate)
    async def on_close(self, _: CloseGate) -> Done:
        self._open = False
        await self._drained.wait()
        return Done()

    @handles(OpenGate)
    async def on_open(self, request: OpenGate) -> Done:
        log.info("gate open at weights %s", request.version)
        self._open = True
        self._go_on()
        return Done()

    @handles(DescribeBalancer)
    async def on_describe(self, _: DescribeBalancer) -> BalancerStatus:
        return self.status()

    def status(self) -> BalancerStatus:
        """The books as they are now."""
        return BalancerStatus(
            gate_open=self._open,
            loads=self._strategy.loads(),
            waiting=len(self._asked),
            granted_total=self._granted_total,
            queued_total=self._queued_total,
            peak_leases=self._peak,
        )

    def _at_this_time(self) -> Strategy:
        """The strategy, told what time it is."""
        self._strategy.time_is(self.port.clock.now_ns() / 1e9)
        return self._strategy

    def _go_on(self) -> None:
        """After anything that happened: give the leases and turns that can be given now."""
        for rollout in self._at_this_time().turns():
            self._at_barrier.pop(rollout).set_result(Done())
        if not self._open:
            return
        for lease in self._strategy.grants():
            self._leases[lease.rollout] = lease
            self._granted_total += 1
            self._drained.clear()
            waiting = self._asked.pop(lease.rollout, None)
            if waiting is not None:  # else it has just been asked for, and is answered by whoever is asked
                waiting.set_result(LeaseGranted(lease=lease, queued=True))
        self._peak = max(self._peak, len(self._leases))

    def _end_leases(self, rollouts: tuple[str, ...]) -> None:
        for rollout in rollouts:
            self._leases.pop(rollout, None)
            self._turns_begun.pop(rollout, None)
            waiting = self._at_barrier.pop(rollout, None)
            if waiting is not None:
                waiting.set_result(Done())
        if not self._leases:
            self._drained.set()
