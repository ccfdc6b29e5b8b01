"""How many requests a second two processes exchange: coalesced in our mailbox, and as pipelined plain Ray calls.

Both sides of the comparison share the driver, its loop, the Ray session, the body, the number in flight and the
validation of each message on both ends; each round counts only answers that have arrived and equal what was sent.
The two take turns in short rounds, so that a slow minute of the machine hits both.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

from pydantic import BaseModel

from actors.system.actor import Actor, handles
from actors.system.clock import RealClock, seconds_since
from actors.system.message import Message, Request
from actors.system.plain_ray_echo import PlainRayEcho
from actors.system.ray_stage import RayStage
from actors.system.stage import Part

BODY_BYTES = 500


class Parcel(Request["Parcel"], tag="bench.parcel"):
    """Goes there and comes back."""

    body: bytes


class EchoActor(Actor):
    @handles(Parcel)
    async def on_parcel(self, parcel: Parcel) -> Parcel:
        return Parcel(body=parcel.body)


class MailboxFigures(BaseModel):
    """Requests answered per second of wall-clock time."""

    mailbox_per_s: float
    plain_per_s: float
    ratio: float
    """`mailbox_per_s / plain_per_s`."""
    in_flight: int
    body_bytes: int
    mailbox_replies: int
    plain_replies: int
    seconds: float
    """Measured seconds of each side."""
    rounds: int


async def bench_mailbox(
    seconds: float = 6.0, in_flight: int = 3000, rounds: int = 3, *, say: Callable[[str], None] = lambda text: None
) -> MailboxFigures:
    """Measure both sides for `seconds` each, in alternating rounds, on a Ray of its own; `say` hears of each side."""
    say("starting Ray")
    async with RayStage(seed=0, name="bench", cpus=2) as stage:
        (echo,) = await stage.spawn(Part(name="echo", actor=EchoActor))
        plain = PlainRayEcho(Parcel.__module__)

        async def ask(parcel: Message) -> Message:
            assert isinstance(parcel, Parcel)
            return await stage.port.ask(echo, parcel)

        sides: dict[str, Callable[[Message], Awaitable[Message]]] = {"mailbox": ask, "plain": plain.echo}
        replies, spent = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0.0)
        for send in sides.values():  # warm up
            await _keep_in_flight(send, in_flight, 0.5)
        for _ in range(rounds):
            for name, send in sides.items():
                say(f"{name}: {seconds / rounds:.1f} s")
                gc.collect()
                count, wall = await _keep_in_flight(send, in_flight, seconds / rounds)
                replies[name] += count
                spent[name] += wall
        plain.close()
    mailbox_per_s, plain_per_s = (replies[name] / spent[name] for name in ("mailbox", "plain"))
    return MailboxFigures(
        mailbox_per_s=mailbox_per_s,
        plain_per_s=plain_per_s,
        ratio=mailbox_per_s / plain_per_s,
        in_flight=in_flight,
        body_bytes=BODY_BYTES,
        mailbox_replies=replies["mailbox"],
        plain_replies=replies["plain"],
        seconds=seconds,
        rounds=rounds,
    )


async def _keep_in_flight(
    send: Callable[[Message], Awaitable[Message]], in_flight: int, seconds: float
) -> tuple[int, float]:
    """Keep `in_flight` requests open for `seconds`; returns the answers counted and the time until the last of them."""
    clock = RealClock()
    start = clock.now_ns()
    deadline = start + int(seconds * 1e9)
    answered = 0

    async def correspond(serial: int) -> None:
        nonlocal answered
        body = serial.to_bytes(8, "little") + bytes(BODY_BYTES - 8)
        while clock.now_ns() < deadline:
            parcel = Parcel(body=body)
            if await send(parcel) != parcel:
                raise RuntimeError("an echo came back changed")
            answered += 1

    await asyncio.gather(*(correspond(serial) for serial in range(in_flight)))
    return answered, seconds_since(clock, start)
