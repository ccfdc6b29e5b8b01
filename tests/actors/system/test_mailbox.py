"""The mailbox by itself, over a wire that does what a test wants of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from actors.system.actor import ActorLost, ActorRef, CannotGoOn, DeadlineExceeded, HandlerFailed
from actors.system.frames import FRAME_BYTES, unpack_frame
from actors.system.links import Limits
from actors.system.mailbox import Mailbox
from actors.system.message import Message, MessageError
from tests.actors.system.players import (
    Break,
    Hang,
    Player,
    Refuse,
    Said,
    Say,
    SayLater,
    SayUrgently,
    Told,
    Unheard,
    WhatWasTold,
)
from tests.actors.system.wires import StraightWire, holds_nothing

BOB = ActorRef("bob")
HASTY = Limits(retry_s=0.0005, retry_max_s=0.001, give_up_s=30.0)


class Pair:
    """Alice, who asks, and Bob, who answers."""

    def __init__(self) -> None:
        self.player = Player()
        self.bob = Mailbox("bob", 0, self.player.handle)
        self.bob.inbox.open()
        self.lost: list[str] = []
        self.alice = Mailbox("alice", limits=HASTY, on_lost=lambda link: self.lost.append(link.peer))
        self.wire = StraightWire(self.bob)
        self.link = self.alice.introduce("bob", 0, self.wire)

    async def close(self) -> None:
        await self.alice.close()
        await self.bob.close()


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    pair.player.port = type("Port", (), {"incarnation": 0, "name": "bob"})()  # type: ignore[assignment]
    yield pair
    await pair.close()


async def test_all_that_is_said_in_one_turn_leaves_in_one_frame(pair: Pair) -> None:
    async def speak(serial: int) -> Said:
        pair.alice.tell(BOB, Told(text=str(serial)))
        return await pair.alice.ask(BOB, Say(text=str(serial)))

    answers = await asyncio.gather(*map(speak, range(50)))
    assert [answer.text for answer in answers] == [str(serial) for serial in range(50)]
    assert pair.player.told == [str(serial) for serial in range(50)]
    assert [len(unpack_frame(frame)[1]) for frame in pair.wire.frames] == [100]


async def test_frames_stay_small_unless_one_message_is_larger(pair: Pair) -> None:
    sizes = [500] * 400 + [FRAME_BYTES * 3] + [30_000] * 7
    asks = [pair.alice.ask(BOB, Say(text="x" * size)) for size in sizes]
    assert [len(answer.text) for answer in await asyncio.gather(*asks)] == sizes
    for frame in pair.wire.frames:
        assert len(frame) <= FRAME_BYTES + 100 or len(unpack_frame(frame)[1]) == 1
    assert 8 <= len(pair.wire.frames) <= 12


async def test_control_overtakes_work_that_is_stuck(pair: Pair) -> None:
    pair.wire.held_lanes.add("work")
    work = asyncio.ensure_future(pair.alice.ask(BOB, Say(text="work")))
    assert (await pair.alice.ask(BOB, SayUrgently(text="control"))).text == "control"
    assert not work.done()
    pair.wire.release()
    assert (await work).text == "work"


async def test_a_slow_handler_does_not_keep_a_fast_one_waiting(pair: Pair) -> None:
    slow = asyncio.ensure_future(pair.alice.ask(BOB, Hang()))
    assert (await pair.alice.ask(BOB, Say(text="fast"))).text == "fast"
    assert (await pair.alice.ask(BOB, SayLater(text="later", turns=5))).text == "later"
    assert not slow.done()
    slow.cancel()


async def test_an_ask_ends_at_its_deadline_and_is_held_nowhere(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded, match=r"bob.*test\.hang"):
        await pair.alice.ask(BOB, Hang(), deadline_s=0.01)
    pair.wire.held_lanes.add("work")
    stuck = asyncio.ensure_future(pair.alice.ask(BOB, Say(text="under way"), deadline_s=0.02))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded):
        await pair.alice.ask(BOB, Say(text="not even sent"), deadline_s=0.01)
    with pytest.raises(DeadlineExceeded):
        await stuck
    assert holds_nothing(pair.link)
    pair.wire.release()
    assert (await pair.alice.ask(BOB, Say(text="after"))).text == "after"


async def test_a_cancelled_ask_is_held_nowhere(pair: Pair) -> None:
    pair.wire.held_lanes.add("work")
    asks = [asyncio.ensure_future(pair.alice.ask(BOB, Say(text="x" * 30_000))) for _ in range(40)]
    await asyncio.sleep(0.01)
    for ask in asks:
        ask.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    assert all(ask.cancelled() for ask in asks)
    assert holds_nothing(pair.link)
    pair.wire.release()
    assert (await pair.alice.ask(BOB, Say(text="after"))).text == "after"


async def test_what_a_handler_raises_reaches_its_asker_and_nobody_else(pair: Pair) -> None:
    good, bad, unheard = await asyncio.gather(
        pair.alice.ask(BOB, Say(text="good")),
        pair.alice.ask(BOB, Break(text="by design")),
        pair.alice.ask(BOB, Unheard()),
        return_exceptions=True,
    )
    assert isinstance(good, Said) and good.text == "good"
    assert isinstance(bad, HandlerFailed)
    assert "ZeroDivisionError: by design" in str(bad) and "on_break" in str(bad)
    assert isinstance(unheard, HandlerFailed) and "does not handle 'test.unheard'" in str(unheard)


async def test_why_a_handler_can_not_go_on_reaches_its_asker_as_it_was_said(pair: Pair) -> None:
    with pytest.raises(CannotGoOn, match=r"^the disk is full; make room$") as told:
        await pair.alice.ask(BOB, Refuse(text="the disk is full; make room"))
    assert type(told.value) is CannotGoOn, "what is more special stays over there"
    assert holds_nothing(pair.link)


async def test_a_message_that_can_not_travel_fails_its_own_sender_only(pair: Pair) -> None:
    good, bad = await asyncio.gather(
        pair.alice.ask(BOB, Say(text="good")),
        pair.alice.ask(BOB, Say(text="\ud800")),
        return_exceptions=True,
    )
    assert isinstance(good, Said)
    assert isinstance(bad, MessageError)
    with pytest.raises(MessageError):
        pair.alice.tell(BOB, Told(text="\ud800"))
    assert holds_nothing(pair.link)


async def test_an_answer_that_is_no_message_fails_the_ask(pair: Pair) -> None:
    async def nonsense(message: Message) -> Message:
        return Said.model_construct(text=3)  # type: ignore[arg-type]

    pair.bob.inbox._handle = nonsense
    with pytest.raises(HandlerFailed, match=r"test\.said"):
        await pair.alice.ask(BOB, Say(text="x"))


async def test_a_death_fails_all_that_is_open_and_all_that_follows(pair: Pair) -> None:
    early = [asyncio.ensure_future(pair.alice.ask(BOB, Hang())) for _ in range(3)]
    await asyncio.sleep(0.01)
    pair.wire.held_lanes.add("work")
    stuck = [asyncio.ensure_future(pair.alice.ask(BOB, Say(text="x" * 80_000))) for _ in range(9)]
    await asyncio.sleep(0.01)
    pair.wire.die()
    for outcome in await asyncio.gather(*early, *stuck, return_exceptions=True):
        assert isinstance(outcome, ActorLost)
    with pytest.raises(ActorLost, match="killed by the test"):
        await pair.alice.ask(BOB, Say(text="late"))
    pair.alice.tell(BOB, Told(text="lost silently"))
    assert pair.lost == ["bob"]
    assert holds_nothing(pair.link)


async def test_a_peer_that_is_only_told_things_may_die_unmourned(pair: Pair) -> None:
    pair.wire.die()
    pair.alice.tell(BOB, Told(text="x"))
    await asyncio.sleep(0.01)
    assert pair.lost == ["bob"]


async def test_who_was_not_introduced_is_lost_at_once(pair: Pair) -> None:
    pair.alice.tell(ActorRef("carol"), Told(text="x"))
    with pytest.raises(ActorLost, match="carol"):
        await pair.alice.ask(ActorRef("carol"), Say(text="x"))


async def test_nobody_waits_for_ever_for_a_peer_that_can_not_be_reached(pair: Pair) -> None:
    patient = Mailbox("patient", limits=Limits(retry_s=0.001, retry_max_s=0.002, give_up_s=0.02))
    link = patient.introduce("bob", 0, pair.wire)
    pair.wire.unreachable = True
    with pytest.raises(ActorLost, match=r"unreachable.*cable is cut"):
        await patient.ask(BOB, Say(text="x"))
    assert link.lost is None
    pair.wire.unreachable = False
    assert (await patient.ask(BOB, Say(text="back"))).text == "back"
    await patient.close()


async def test_a_new_incarnation_is_heard_and_the_old_one_no_more(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.alice.ask(BOB, Hang()))
    slow = asyncio.ensure_future(pair.alice.ask(BOB, SayLater(text="stale", turns=30)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    successor = Mailbox("bob", 1, Player("new ").handle)
    successor.inbox.open()
    successor.inbox._handle = _greeting("new")
    link = pair.alice.introduce("bob", 1, StraightWire(successor))
    assert pair.alice.introduce("bob", 0, pair.wire) is link, "an older incarnation is ignored"
    for old in (waiting, slow):
        with pytest.raises(ActorLost, match="restarted"):
            await old
    assert (await pair.alice.ask(BOB, Say(text="x"))).text == "new"
    assert holds_nothing(pair.link)
    await successor.close()


async def test_a_restarted_asker_starts_afresh_and_its_former_self_is_not_heard(pair: Pair) -> None:
    await pair.alice.ask(BOB, Say(text="x"))
    reborn = Mailbox("alice", 1, limits=HASTY)
    reborn.introduce("bob", 0, pair.wire)
    assert (await reborn.ask(BOB, Say(text="again"))).text == "again"
    pair.alice.tell(BOB, Told(text="from the grave"))
    with pytest.raises(DeadlineExceeded):
        await pair.alice.ask(BOB, Say(text="x"), deadline_s=0.02)
    heard = await reborn.ask(BOB, WhatWasTold())
    assert heard.texts == ()
    await reborn.close()


async def test_who_asks_an_actor_that_is_ending_is_told_so(pair: Pair) -> None:
    running = asyncio.ensure_future(pair.alice.ask(BOB, Hang()))
    await asyncio.sleep(0.01)
    await pair.bob.inbox.close()
    asks: list[asyncio.Future[Any]] = [running, asyncio.ensure_future(pair.alice.ask(BOB, Say(text="late")))]
    for ask in asks:
        with pytest.raises(ActorLost, match="ending"):
            await ask


async def test_nothing_is_handled_before_the_inbox_opens() -> None:
    bob = Mailbox("bob", 0, _greeting("hello"))
    alice = Mailbox("alice", limits=HASTY)
    alice.introduce("bob", 0, StraightWire(bob))
    early = asyncio.ensure_future(alice.ask(BOB, Say(text="x")))
    await asyncio.sleep(0.01)
    assert not early.done()
    bob.inbox.open()
    assert (await early).text == "hello"
    await alice.close()
    await bob.close()


async def test_a_closing_mailbox_fails_its_own_asks(pair: Pair) -> None:
    open_ask = asyncio.ensure_future(pair.alice.ask(BOB, Hang()))
    await asyncio.sleep(0.01)
    await pair.alice.close()
    with pytest.raises(ActorLost, match="closing"):
        await open_ask


async def test_a_resent_frame_gets_the_stored_answer_and_is_not_acted_on_again(pair: Pair) -> None:
    pair.alice.tell(BOB, Told(text="once"))
    first = await pair.alice.ask(BOB, Say(text="x"))
    (frame,) = pair.wire.frames
    acks = [await pair.bob.inbox.frame(frame) for _ in range(3)]
    assert acks[0] == acks[1] == acks[2]
    assert b"x" in acks[0] and first.text == "x"
    assert pair.player.told == ["once"]


def _greeting(text: str):
    async def handle(message: Message) -> Message:
        return Said(text=text)

    return handle
