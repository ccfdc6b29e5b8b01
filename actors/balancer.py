"""The balancer: grants leases on generators' KV cache as a strategy decides.

Invariants:
- no handler waits for capacity: a wish is noted, and its asker is answered when the strategy grants it;
- while the gate is closed nothing is granted; closing is answered when every lease has come back;
- a lease is released exactly once, by its rollout, or with its generator;
- whoever waits at a turn barrier is answered when the strategy says so, or when the lease ends;
- one that was started again grants nothing, and answers nobody, before it knows from every rollout actor what leases
  are held: its books are those of its predecessor, but for what died meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from actors.messages import (
    AcquireLease,
    BalancerStatus,
    BeginTurn,
    CloseGate,
    DescribeBalancer,
    DescribeGenerator,
    DescribeLeases,
    DescribeRun,
    JoinGenerator,
    LeaseGranted,
    LeaveGenerator,
    OpenGate,
    ReleaseLease,
    ReleaseOwner,
    TurnEnded,
)
from actors.supervision import owner_of, patiently, work_of
from actors.system.actor import Actor, ActorError, ActorLost, ActorRef, DeadlineExceeded, handles
from actors.system.message import Done
from policies.balancing import BalancerOptions, Capacity, HeldLease, Lease, Strategy, Unplaceable
from policies.balancing_strategies import make_strategy

log = logging.getLogger(__name__)

RECOVERY_DEADLINE_S = 30.0
LOOK_DEADLINE_S = 30.0
"""For what a generator has done: shorter than a rollout actor waits that asks that of the balancer."""


class BalancerActor(Actor):
    """Drives one strategy of `policies.balancing_strategies`.

    Args:
        director: says, to one that was started again, whether the gate is open and for which generators.
        rollouts: who holds leases.
    """

    def __init__(
        self, *, options: BalancerOptions, director: ActorRef | None = None, rollouts: Sequence[ActorRef] = ()
    ) -> None:
        self._options, self._director, self._rollouts = options, director, tuple(rollouts)
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
        self._not_adopted: dict[str, HeldLease] = {}
        """Held on generators that have not joined (yet)."""
        self._recovered = asyncio.Event()
        if self.port.incarnation and self._director is not None:
            self.port.start_task(self._recover(self._director))
        else:
            self._recovered.set()

    async def work_done(self) -> int:
        """Of the generators: whoever waits for a lease, or for all to come back, waits for what runs there.

        When all have come back and the gate is closed, they wait for its opening, and time counts: whoever has closed
        it watches those whom it waits for.
        """
        if not self._open and not self._leases:
            return self.port.clock.now_ns()
        generators = [ActorRef(load.capacity.generator) for load in self._strategy.loads()]
        return self._granted_total + sum(
            await asyncio.gather(*[work_of(self.port, ref, LOOK_DEADLINE_S) for ref in generators])
        )

    # --- after a death --------------------------------------------------------------------------

    async def _recover(self, director: ActorRef) -> None:
        view = await patiently(self.port, director, DescribeRun())
        self._open = view.gate_open
        for leases in await asyncio.gather(*[self._held_by(ref) for ref in self._rollouts]):
            self._not_adopted.update({held.wish.rollout: held for held in leases})
        for load in self._strategy.loads():  # those that have joined of themselves meanwhile
            self._adopt(load.capacity)
        await asyncio.gather(*[self._find(ActorRef(name)) for name in view.generators])
        log.info(
            "started again with %d leases; %d are of generators that are gone",
            len(self._leases),
            len(self._not_adopted),
        )
        self._recovered.set()
        self._go_on()

    async def _held_by(self, rollouts: ActorRef) -> tuple[HeldLease, ...]:
        """What a rollout actor holds; one that died holds nothing."""
        while True:
            try:
                return (await self.port.ask(rollouts, DescribeLeases(), RECOVERY_DEADLINE_S)).leases
            except ActorLost as lost:
                log.warning("%s holds no leases: %s", rollouts.name, lost)
                return ()
            except DeadlineExceeded as late:  # what it holds must not be promised to others
                log.warning("%s does not say which leases it holds: %s", rollouts.name, late)

    async def _find(self, generator: ActorRef) -> None:
        """Have a generator back in the books; one that is gone is brought back by those who watch it."""
        while True:
            try:
                status = await self.port.ask(generator, DescribeGenerator(), RECOVERY_DEADLINE_S)
                break
            except DeadlineExceeded as late:  # those who watch it do not miss it
                log.warning("%s does not say what it can hold: %s", generator.name, late)
            except ActorError as error:
                log.warning("%s is not there: %s", generator.name, error)
                return
        await self.on_join(JoinGenerator(capacity=status.capacity))

    def _adopt(self, capacity: Capacity) -> None:
        """Enter what is held on a generator."""
        for held in [each for each in self._not_adopted.values() if each.lease.generator == capacity.generator]:
            del self._not_adopted[held.wish.rollout]
            lease = self._at_this_time().adopt(held.wish, held.lease)
            if lease is not None:
                self._leases[lease.rollout] = lease
                self._drained.clear()
                self._strategy.progressed(lease.rollout, held.tokens)

    # --- handlers -------------------------------------------------------------------------------

    @handles(JoinGenerator)
    async def on_join(self, request: JoinGenerator) -> Done:
        known = {load.capacity.generator: load.capacity for load in self._strategy.loads()}
        if known.get(request.capacity.generator) != request.capacity:  # not asked again after a resend
            self._end_leases(self._at_this_time().generator_left(request.capacity.generator))
            self._strategy.generator_joined(request.capacity)
            self._adopt(request.capacity)
            self._go_on()
        return Done()

    @handles(LeaveGenerator)
    async def on_leave(self, request: LeaveGenerator) -> Done:
        await self._recovered.wait()
        for load in self._strategy.loads():
            capacity = load.capacity
            if capacity.generator == request.generator and request.incarnation in (None, capacity.incarnation):
                self._end_leases(self._at_this_time().generator_left(request.generator))
                self._go_on()
        return Done()

    @handles(AcquireLease)
    async def on_acquire(self, request: AcquireLease) -> LeaseGranted:
        await self._recovered.wait()
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
        await self._recovered.wait()
        self._release(message.rollout, message.tokens)
        self._go_on()

    @handles(ReleaseOwner)
    async def on_release_owner(self, message: ReleaseOwner) -> None:
        await self._recovered.wait()
        known = (*self._asked, *self._leases, *self._not_adopted)
        for rollout in [rollout for rollout in known if owner_of(rollout) == message.owner]:
            self._release(rollout, None)
        self._go_on()

    def _release(self, rollout: str, tokens: int | None) -> None:
        self._not_adopted.pop(rollout, None)
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
        await self._recovered.wait()
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
        await self._recovered.wait()
        self._open = False
        await self._drained.wait()
        return Done()

    @handles(OpenGate)
    async def on_open(self, request: OpenGate) -> Done:
        await self._recovered.wait()
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
        if not self._open or not self._recovered.is_set():
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
