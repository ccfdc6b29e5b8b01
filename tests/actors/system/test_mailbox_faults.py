"""The mailbox over a wire that loses, doubles, delays and reorders frames: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.system.actor import ActorRef
from actors.system.links import Limits
from actors.system.mailbox import Mailbox
from actors.system.message import Message
from tests.actors.system.players import Heard, Player, Said, Say, SayLater, SayUrgently, Told, WhatWasTold
from tests.actors.system.wires import FaultyWire, holds_nothing

BOB = ActorRef("bob")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fault_share=st.floats(0.0, 0.6),
    window=st.integers(1, 5),
    bursts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_each_ask_is_answered_once_and_acted_on_once_whatever_the_wire_does(
    seed: int, fault_share: float, window: int, bursts: list[int]
) -> None:
    asyncio.run(_correspond_over_a_faulty_wire(random.Random(seed), fault_share, window, bursts))


async def _correspond_over_a_faulty_wire(
    luck: random.Random, fault_share: float, window: int, bursts: list[int]
) -> None:
    acted: list[tuple[str, str]] = []
    all_told = asyncio.Event()

    async def handle(message: Message) -> Message | None:
        text = message.text  # type: ignore[attr-defined]
        acted.append((message.lane, text.split(":")[0]))
        if len(acted) == sum(bursts):
            all_told.set()
        if isinstance(message, SayLater):
            for _ in range(message.turns):
                await asyncio.sleep(0)
        return None if isinstance(message, Told) else Said(text=text)

    bob = Mailbox("bob", 0, handle)
    bob.inbox.open()
    limits = Limits(window=window, retry_s=0.0001, retry_max_s=0.0005, give_up_s=60.0)
    alice = Mailbox("alice", 0, limits=limits)
    wire = FaultyWire(bob, luck, fault_share)
    link = alice.introduce("bob", 0, wire)
    said: dict[str, list[str]] = {"work": [], "control": []}
    asks: list[tuple[str, asyncio.Future[Said]]] = []
    serial = 0
    for burst in bursts:
        for _ in range(burst):
            serial += 1
            text = f"{serial}:" + "x" * luck.choice([3, 3, 3, 40_000])
            kind = luck.choice([Say, SayLater, SayUrgently, Told])
            message = SayLater(text=text, turns=luck.randrange(9)) if kind is SayLater else kind(text=text)
            said[kind.lane].append(str(serial))
            if isinstance(message, Told):
                alice.tell(BOB, message)
            else:
                asks.append((text, asyncio.ensure_future(alice.ask(BOB, message))))  # type: ignore[arg-type]
            if luck.random() < 0.2:
                await asyncio.sleep(0)
        for _ in range(luck.randrange(20)):
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for text, ask in asks:
            assert (await ask).text == text
        await all_told.wait()
    assert max(Counter(acted).values()) == 1
    for lane, texts in said.items():
        assert sorted(texts, key=int) == sorted((text for on, text in acted if on == lane), key=int)
    assert holds_nothing(link)
    wire.close()
    await alice.close()
    await bob.close()


@pytest.mark.parametrize("window", [1, 4])
async def test_one_lane_keeps_its_order_when_frames_arrive_out_of_order(window: int) -> None:
    for seed in range(20):
        player = Player()
        bob = Mailbox("bob", 0, player.handle)
        bob.inbox.open()
        alice = Mailbox("alice", limits=Limits(window=window, retry_s=0.0001, retry_max_s=0.0005))
        wire = FaultyWire(bob, random.Random(seed), 0.3)
        alice.introduce("bob", 0, wire)
        texts = [f"{serial}:" + "x" * 20_000 for serial in range(60)]
        for text in texts:
            alice.tell(BOB, Told(text=text))
        heard = await alice.ask(BOB, WhatWasTold(), deadline_s=30)
        assert heard == Heard(texts=tuple(texts))
        wire.close()
        await alice.close()
        await bob.close()
