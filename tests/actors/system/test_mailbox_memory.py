"""However much was said, and however often a peer died, a mailbox holds what is open, and little more."""

from __future__ import annotations

import asyncio

import pytest

from actors.system.actor import ActorLost, ActorRef, DeadlineExceeded
from actors.system.mailbox import Mailbox
from actors.system.message import Message
from tests.actors.system.players import Hang, Said, Say, SayLater, SayUrgently
from tests.actors.system.wires import StraightWire
from tests.support.held import held_by

BOB = ActorRef("bob")


async def answer(message: Message) -> Message:
    match message:
        case SayLater():
            await asyncio.sleep(0)
        case Hang():
            await asyncio.Event().wait()
    return Said(text="yes")


def opened(name: str, incarnation: int) -> Mailbox:
    mailbox = Mailbox(name, incarnation, answer)
    mailbox.inbox.open()
    return mailbox


async def talk(alice: Mailbox) -> None:
    asks = [alice.ask(BOB, kind(text=str(number))) for number in range(20) for kind in (Say, SayLater, SayUrgently)]
    await asyncio.gather(*asks)
    with pytest.raises(DeadlineExceeded):
        await alice.ask(BOB, Hang(), deadline_s=0.001)


def size(mailbox: Mailbox) -> int:
    return held_by(mailbox, beyond_types=(StraightWire,)).total()


async def test_many_messages_leave_nothing_behind() -> None:
    alice, bob = opened("alice", 0), opened("bob", 0)
    alice.introduce("bob", 0, StraightWire(bob))
    sizes = []
    for _ in range(40):
        await talk(alice)
        hanging = list(bob.inbox._running)
        for task in hanging:  # what was given up goes on over there; here it is over
            task.cancel()
        await asyncio.gather(*hanging)
        sizes.append((size(alice), size(bob)))
    for mine in zip(*sizes, strict=True):
        assert max(mine[20:]) <= max(mine[5:20]) + 5, sizes
    await alice.close()
    await bob.close()


async def test_deaths_of_those_who_are_talked_to_leave_nothing_behind() -> None:
    alice, sizes = opened("alice", 0), []
    for incarnation in range(60):
        bob = opened("bob", incarnation)
        wire = StraightWire(bob)
        alice.introduce("bob", incarnation, wire)
        open_ask = asyncio.ensure_future(alice.ask(BOB, Hang()))
        await talk(alice)
        wire.die()
        with pytest.raises(ActorLost):
            await open_ask
        await bob.close()
        sizes.append(size(alice))
    assert max(sizes[30:]) <= max(sizes[5:30]) + 5, sizes
    await alice.close()


async def test_deaths_of_those_who_ask_leave_nothing_behind() -> None:
    bob, sizes = opened("bob", 0), []
    for incarnation in range(60):
        alice = opened("alice", incarnation)
        alice.introduce("bob", 0, StraightWire(bob))
        await talk(alice)
        await alice.close()
        for task in list(bob.inbox._running):
            task.cancel()
        await asyncio.sleep(0)
        sizes.append(size(bob))
    assert max(sizes[30:]) <= max(sizes[5:30]) + 5, sizes
    await bob.close()
