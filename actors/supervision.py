"""What follows the death of a generator or a rollout actor: the books are put right.

Invariants:
- a generator that is gone, or can't be reached, gets no leases until it is back with the weights of the day;
- what a dead rollout actor held (leases; requests and histories at generators; sessions) is given back for it;
- what is said of one incarnation can't hit its successor.

A parked ask (`AwaitEnd`, which is never answered) tells of a death; asking again, after a pause, tells of the return.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from actors.messages import (
    AwaitEnd,
    DescribeGenerator,
    EndSessionsOf,
    ForgetOwner,
    Identify,
    Identity,
    JoinGenerator,
    LeaveGenerator,
    ReleaseOwner,
)
from actors.system.actor import Actor, ActorError, ActorLost, ActorRef, Port, handles
from actors.system.clock import seconds_since
from actors.system.message import DescribeWork, Done, Message, Request
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before an actor that was lost is looked for again."""
DEADLINE_S = 120.0
"""For small requests. Longer than a mailbox takes to give up."""
RETURN_S = 600.0
"""How long an actor that was lost is waited for: it may be restarting, and its machine may be busy."""
TRIES = 5
"""How often one is asked that is there and does not answer."""


class Watched(Actor):
    """An actor whose end others can wait for."""

    @handles(Identify)
    async def on_identify(self, _: Identify) -> Identity:
        return Identity(incarnation=self.port.incarnation)

    @handles(AwaitEnd)
    async def on_await_end(self, _: AwaitEnd) -> None:
        await asyncio.Event().wait()


async def patiently[R: Message](
    port: Port,
    to: ActorRef,
    request: Request[R],
    deadline_s: float | None = DEADLINE_S,
    *,
    unless_at_work: bool = True,
) -> R:
    """Ask one that may be restarting: again after each loss, until its next incarnation has answered.

    Raises `ActorLost` if none has come for `RETURN_S`, and what else an ask raises.
    """
    lost_ns: int | None = None
    while True:
        asked_ns = port.clock.now_ns()
        try:
            return await port.ask(to, request, deadline_s, unless_at_work=unless_at_work)
        except ActorLost as lost:
            if lost_ns is None or seconds_since(port.clock, asked_ns) > PAUSE_S:  # it was there for a while
                lost_ns = port.clock.now_ns()
                log.warning("waiting for %s to be back: %s", to.name, lost)
            if seconds_since(port.clock, lost_ns) > RETURN_S:
                raise
        await port.clock.sleep(PAUSE_S)


async def work_of(port: Port, ref: ActorRef, deadline_s: float) -> int:
    """What an actor has done (`Actor.work_done`); 0 if it does not say."""
    try:
        return (await port.ask(ref, DescribeWork(), deadline_s)).done
    except ActorError as error:
        log.warning("%s does not say what it has done: %s", ref.name, error)
        return 0


async def insist(port: Port, to: ActorRef, request: Request[Done], *, patient: bool = False) -> bool:
    """Ask until it is answered, a few times; whether it was.

    With `patient`, one that dies is waited for: its next incarnation has to know, too.
    """
    for _ in range(TRIES):
        try:
            await (patiently(port, to, request) if patient else port.ask(to, request, DEADLINE_S))
            return True
        except ActorError as error:
            log.warning("%s did not answer %s: %s", to.name, request.tag, error)
            await port.clock.sleep(PAUSE_S)
    return False


class Supervision:
    """Watches generators and rollout actors for as long as its owner lives.

    `version` gives the weights that generators must have to be used.
    """

    def __init__(
        self,
        port: Port,
        balancer: ActorRef,
        generators: Sequence[ActorRef],
        rollouts: Sequence[ActorRef],
        environments: Sequence[ActorRef],
        version: Callable[[], WeightsVersion],
    ) -> None:
        self._port, self._balancer, self._generators = port, balancer, list(generators)
        self._environments = list(environments)
        self._version = version
        self.left_out: dict[str, None] = {}
        """Generators that get no leases for now."""
        for ref in generators:
            port.start_task(self._watch(ref, self._generator_gone, self._generator_back))
        for ref in rollouts:
            port.start_task(self._watch(ref, self._rollouts_gone, self._nothing))

    async def leave_out(self, generator: str) -> None:
        """No more leases for a generator, until it is found with the right weights."""
        self.left_out[generator] = None
        await insist(self._port, self._balancer, LeaveGenerator(generator=generator), patient=True)

    async def _watch(self, ref: ActorRef, gone: Callable, back: Callable) -> None:
        incarnation: int | None = None
        while True:
            try:
                incarnation = (await self._port.ask(ref, Identify(), DEADLINE_S)).incarnation
                if await back(ref):
                    await self._port.ask(ref, AwaitEnd())
            except ActorError as error:
                log.warning("%s (incarnation %s) is lost: %s", ref.name, incarnation, error)
                if incarnation is not None:
                    await gone(ref, incarnation)
                    incarnation = None
            await self._port.clock.sleep(PAUSE_S)

    async def _generator_gone(self, ref: ActorRef, incarnation: int) -> None:
        self.left_out[ref.name] = None
        left = LeaveGenerator(generator=ref.name, incarnation=incarnation)
        await insist(self._port, self._balancer, left, patient=True)

    async def _generator_back(self, ref: ActorRef) -> bool:
        """Bring a generator that was left out back into the balancer's books, if its weights are right."""
        if ref.name not in self.left_out:
            return True
        status = await self._port.ask(ref, DescribeGenerator(), DEADLINE_S)
        if status.version != self._version():
            return False
        del self.left_out[ref.name]
        return await insist(self._port, self._balancer, JoinGenerator(capacity=status.capacity), patient=True)

    async def _rollouts_gone(self, ref: ActorRef, incarnation: int) -> None:
        owner = f"{ref.name}-{incarnation}"
        await asyncio.gather(
            *[insist(self._port, each, ForgetOwner(owner=owner)) for each in self._generators],
            *[insist(self._port, each, EndSessionsOf(owner=owner)) for each in self._environments],
        )
        await insist(self._port, self._balancer, ReleaseOwner(owner=owner), patient=True)

    async def _nothing(self, _: ActorRef) -> bool:
        return True


def owner_of(name: str) -> str:
    """`NAME-INCARNATION` of the rollout actor that has a lease or session named `ROLLOUT@NAME-INCARNATION-SERIAL`."""
    return name.rpartition("@")[2].rpartition("-")[0]
