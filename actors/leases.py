"""The leases that the dialogues of a rollout actor hold.

Invariants:
- a lease is given back whatever becomes of its dialogue, and to a balancer that died meanwhile: to its successor;
- a wish that nobody waits for any more is withdrawn, and its lease, if it came all the same, given back.
"""

from __future__ import annotations

import asyncio
import logging

from actors.messages import AcquireLease, BeginTurn, ForgetRollout, LeaseGranted, ReleaseLease, TurnEnded
from actors.supervision import insist, patiently
from actors.system.actor import ActorError, ActorRef, Port
from policies.balancing import HeldLease, Lease, Wish

log = logging.getLogger(__name__)

LEASE_DEADLINE_S = 3600.0
FORGET_DEADLINE_S = 60.0


class RefusedRollout(ValueError):
    """No generator could ever hold the rollout."""


class Leases:
    """What is asked of the balancer, and what it has granted."""

    def __init__(self, port: Port, balancer: ActorRef) -> None:
        self._port, self._balancer = port, balancer
        self._held: dict[str, tuple[Wish, Lease]] = {}
        """By name, from when they are granted until the balancer has them back."""
        self._tokens: dict[str, int] = {}
        """How long the sequence of each was when that was last told."""

    def held(self) -> tuple[HeldLease, ...]:
        return tuple(
            HeldLease(wish=wish, lease=lease, tokens=self._tokens[name]) for name, (wish, lease) in self._held.items()
        )

    async def acquire(self, wish: Wish) -> LeaseGranted:
        """A lease for `wish`. Raises `RefusedRollout`."""
        asked = self._port.start_task(self._ask_for_lease(wish))
        try:
            granted = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._port.start_task(self._unwanted(wish, asked))
            raise
        if isinstance(granted, ActorError):
            self._port.start_task(self._unwanted(wish, asked))  # the balancer has it still, if it only took too long
            raise granted
        if granted.lease is None:
            raise RefusedRollout(granted.refusal)
        self._held[wish.rollout] = wish, granted.lease
        self._tokens[wish.rollout] = wish.prompt_tokens
        return granted

    async def _ask_for_lease(self, wish: Wish) -> LeaseGranted | ActorError:
        try:
            return await patiently(self._port, self._balancer, AcquireLease(wish=wish), LEASE_DEADLINE_S)
        except ActorError as error:  # whoever waits raises it
            return error

    async def _unwanted(self, wish: Wish, asked: asyncio.Task[LeaseGranted | ActorError]) -> None:
        """Withdraw a wish; if it is granted all the same, since the one crossed the other, give the lease back."""
        await insist(self._port, self._balancer, ReleaseLease(rollout=wish.rollout), patient=True)
        granted = await asked
        if isinstance(granted, LeaseGranted) and granted.lease is not None:
            await self._give_back(granted.lease, None)

    def give_back(self, granted: LeaseGranted, tokens: int | None) -> None:
        """Release a lease: the generator first drops what it holds, then the balancer may promise it again.

        `tokens` is the length that the rollout came to, None if it did not come to its end.
        """
        assert granted.lease is not None
        self._port.start_task(self._give_back(granted.lease, tokens))

    async def _give_back(self, lease: Lease, tokens: int | None) -> None:
        try:
            await self._port.ask(ActorRef(lease.generator), ForgetRollout(rollout=lease.rollout), FORGET_DEADLINE_S)
        except ActorError as error:  # then what it held is gone, or will be: nobody can wait for it
            log.warning("%s could not be told to forget %s: %s", lease.generator, lease.rollout, error)
        released = ReleaseLease(rollout=lease.rollout, tokens=tokens)
        await insist(self._port, self._balancer, released, patient=True)
        self._held.pop(lease.rollout, None)
        self._tokens.pop(lease.rollout, None)

    async def may_begin(self, lease: Lease, turn: int) -> None:
        """Wait at the turn barrier, if the lease has one."""
        if lease.turn_barrier:
            await patiently(self._port, self._balancer, BeginTurn(rollout=lease.rollout, turn=turn), LEASE_DEADLINE_S)

    def say_progress(self, lease: Lease, tokens: int) -> None:
        """Tell the balancer how long the sequence is, if it makes use of that."""
        if lease.wants_progress:
            rollout = lease.rollout
            self._tokens[rollout] = tokens
            self._port.tell(self._balancer, TurnEnded(rollout=rollout, tokens=tokens))
