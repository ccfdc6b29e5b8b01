"""The balancer: grants leases on generators' KV cache as a strategy decides.

Invariants:
- no handler waits for capacity: a wish is noted, and its asker is answered when the strategy grants it;
- while the gate is closed nothing is granted; closing is answered when every lease has come back;
- a lease is released exactly once, by its rollout, or with its generator.
"""

from __future__ import annotations

import asyncio
import logging

from actors.messages import (
    AcquireLease,
    BalancerStatus,
    CloseGate,
    DescribeBalancer,
    JoinGenerator,
    LeaseGranted,
    LeaveGenerator,
    OpenGate,
    ReleaseLease,
)
from actors.system.actor import Actor, handles
from actors.system.message import Done
from policies.balancing import BalancerOptions, Lease, Unplaceable, make_strategy

log = logging.getLogger(__name__)


class BalancerActor(Actor):
    """Drives one strategy of `policies.balancing`."""

    def __init__(self, *, options: BalancerOptions) -> None:
        self._options = options
        self._asked: dict[str, asyncio.Future[LeaseGranted]] = {}
        self._leases: dict[str, Lease] = {}
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
            self._end_leases(self._strategy.generator_left(request.capacity.generator))
            self._strategy.generator_joined(request.capacity)
            self._grant()
        return Done()

    @handles(LeaveGenerator)
    async def on_leave(self, request: LeaveGenerator) -> Done:
        self._end_leases(self._strategy.generator_left(request.generator))
        self._grant()
        return Done()

    @handles(AcquireLease)
    async def on_acquire(self, request: AcquireLease) -> LeaseGranted:
        rollout = request.wish.rollout
        if rollout in self._leases:  # asked again after a resend
            return LeaseGranted(lease=self._leases[rollout])
        if rollout not in self._asked:
            try:
                self._strategy.wish(request.wish)
            except Unplaceable as refusal:
                return LeaseGranted(lease=None, refusal=str(refusal))
            self._asked[rollout] = asyncio.get_running_loop().create_future()
            self._grant()
            granted = self._asked.get(rollout)
            if granted is None:
                return LeaseGranted(lease=self._leases[rollout])
            self._queued_total += 1
        return (await asyncio.shield(self._asked[rollout])).model_copy(update={"queued": True})

    @handles(ReleaseLease)
    async def on_release(self, message: ReleaseLease) -> None:
        self._strategy.withdraw(message.rollout)
        waiting = self._asked.pop(message.rollout, None)
        if waiting is not None:
            waiting.cancel()
        self._strategy.release(message.rollout)
        self._end_leases((message.rollout,))
        self._grant()

    @handles(CloseGate)
    async def on_close(self, _: CloseGate) -> Done:
        self._open = False
        await self._drained.wait()
        return Done()

    @handles(OpenGate)
    async def on_open(self, request: OpenGate) -> Done:
        log.info("gate open at weights %s", request.version)
        self._open = True
        self._grant()
        return Done()

    @handles(DescribeBalancer)
    async def on_describe(self, _: DescribeBalancer) -> BalancerStatus:
        return BalancerStatus(
            loads=self._strategy.loads(),
            waiting=len(self._asked),
            granted_total=self._granted_total,
            queued_total=self._queued_total,
            peak_leases=self._peak,
        )

    def _grant(self) -> None:
        if not self._open:
            return
        for lease in self._strategy.grants():
            self._leases[lease.rollout] = lease
            self._granted_total += 1
            self._drained.clear()
            self._asked.pop(lease.rollout).set_result(LeaseGranted(lease=lease))
        self._peak = max(self._peak, len(self._leases))

    def _end_leases(self, rollouts: tuple[str, ...]) -> None:
        for rollout in rollouts:
            self._leases.pop(rollout, None)
        if not self._leases:
            self._drained.set()
