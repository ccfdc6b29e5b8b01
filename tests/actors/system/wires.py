"""Wires for the tests of the mailbox: straight from one mailbox into another, with the faults that a test wants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from actors.system.frames import unpack_frame
from actors.system.links import Link, PeerDied, PeerUnreachable
from actors.system.mailbox import Mailbox


class StraightWire:
    """Delivers at once. Remembers the frames; holds them while `held`; dies on `die()`."""

    def __init__(self, to: Mailbox) -> None:
        self.to = to
        self.frames: list[bytes] = []
        self.held_lanes: set[str] = set()
        self.unreachable = False
        self._release = asyncio.Event()
        self._death = asyncio.get_running_loop().create_future()

    async def frame(self, frame: bytes) -> bytes:
        self.frames.append(frame)
        if unpack_frame(frame)[0].lane in self.held_lanes:
            await self._or_die(self._release.wait())
        return await self._or_die(self.to.inbox.frame(frame))

    async def poll(self, sender: str, incarnation: int, seen: int) -> bytes:
        return await self._or_die(self.to.inbox.poll(sender, incarnation, seen))

    def release(self) -> None:
        self.held_lanes.clear()
        self._release.set()

    def die(self) -> None:
        self._death.set_result(None)

    async def _or_die[T](self, call: Coroutine[Any, Any, T]) -> T:
        if self.unreachable:
            call.close()
            raise PeerUnreachable("the cable is cut")
        task = asyncio.ensure_future(call)
        await asyncio.wait({task, self._death}, return_when=asyncio.FIRST_COMPLETED)
        if self._death.done():
            task.cancel()
            raise PeerDied("killed by the test")
        return task.result()


class FaultyWire:
    """Loses, doubles and delays calls and their results, by a seeded dice."""

    def __init__(self, to: Mailbox, luck: random.Random, fault_share: float) -> None:
        self.to, self.luck, self.fault_share = to, luck, fault_share
        self.strays: list[asyncio.Future[bytes]] = []
        self.faults = 0

    async def frame(self, frame: bytes) -> bytes:
        return await self._carry(lambda: self.to.inbox.frame(frame))

    async def poll(self, sender: str, incarnation: int, seen: int) -> bytes:
        return await self._carry(lambda: self.to.inbox.poll(sender, incarnation, seen))

    async def _carry(self, call: Callable[[], Awaitable[bytes]]) -> bytes:
        await self._dawdle()
        if self.luck.random() >= self.fault_share:
            result = await call()
            await self._dawdle()
            return result
        self.faults += 1
        fault = self.luck.choice(["lost before", "lost after", "lost with the call under way", "doubled"])
        if fault == "lost before":
            raise PeerUnreachable(fault)
        if fault == "lost after":
            await call()
            raise PeerUnreachable(fault)
        self.strays.append(asyncio.ensure_future(call()))
        if fault == "doubled":
            return await call()
        await self._dawdle()
        raise PeerUnreachable(fault)

    async def _dawdle(self) -> None:
        for _ in range(self.luck.randrange(4)):
            await asyncio.sleep(0)

    def close(self) -> None:
        for stray in self.strays:
            stray.cancel()


def holds_nothing(link: Link) -> bool:
    """Whether nobody waits for an answer, and nothing waits to be sent."""
    return not link._asks and all(not lane.outbox and lane.size == 0 for lane in link._lanes.values())
