"""What follows the death of a generator or a rollout actor: the books are put right.

Invariants:
- a generator that is gone, or can't be reached, gets no leases until it is back with the weights of the day;
- what a dead rollout actor held (leases; requests and histories at generators; sessions) is given back for it;
- what is said of one incarnation can't hit its successor.

A parked ask tells of a death (design, section 2); asking again, after a pause, tells of the return.
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
from actors.system.actor import Actor, ActorError, ActorRef, Port, handles
from actors.system.message import Done, Request
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before an actor that was lost is looked for again."""
DEADLINE_S = 120.0
"""For small requests. Longer than a mailbox takes to give up."""
TRIES = 5


class Watched(Actor):
    """An actor whose end others can wait for."""

    @handles(Identify)
    async def on_identify(self, _: Identify) -> Identity:
        return Identity(incarnation=self.port.incarnation)

    @handles(AwaitEnd)
    async def on_await_end(self, _: AwaitEnd) -> None:
        await asyncio.Event().wait()


async def insist(port: Port, to: ActorRef, request: Request[Done]) -> bool:
    """Ask until it is answered, a few times; whether it was."""
    for _ in range(TRIES):
        try:
            await port.ask(to, request, DEADLINE_S)
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
        await insist(self._port, self._balancer, LeaveGenerator(generator=generator))

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
        await insist(self._port, self._balancer, LeaveGenerator(generator=ref.name, incarnation=incarnation))

    async def _generator_back(self, ref: ActorRef) -> bool:
        """Bring a generator that was left out back into the balancer's books, if its weights are right."""
        if ref.name not in self.left_out:
            return True
        status = await self._port.ask(ref, DescribeGenerator(), DEADLINE_S)
        if status.version != self._version():
            return False
        del self.left_out[ref.name]
        return await insist(self._port, self._balancer, JoinGenerator(capacity=status.capacity))

    async def _rollouts_gone(self, ref: ActorRef, incarnation: int) -> None:
        owner = f"{ref.name}-{incarnation}"
        await asyncio.gather(
            *[insist(self._port, each, ForgetOwner(owner=owner)) for each in self._generators],
            *[insist(self._port, each, EndSessionsOf(owner=owner)) for each in self._environments],
        )
        await insist(self._port, self._balancer, ReleaseOwner(owner=owner))

    async def _nothing(self, _: ActorRef) -> bool:
        return True


def owner_of(name: str) -> str:
    """`NAME-INCARNATION` of the rollout actor that has a lease or session named `ROLLOUT@NAME-INCARNATION-SERIAL`."""
    return name.rpartition("@")[2].rpartition("-")[0]
