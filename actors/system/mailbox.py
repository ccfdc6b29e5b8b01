"""A mailbox: how one actor, or the driver of a run, talks to the others. Pure asyncio over any `Wire`.

Invariants:
- peers are known by introduction only; an ask of one that was not introduced, or is gone, fails at once;
- a newer incarnation of a peer replaces the older one, whose asks fail and whose answers are no longer heard.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

from actors.system.actor import ActorLost, ActorRef
from actors.system.inbox import Inbox
from actors.system.links import Limits, Link, Wire
from actors.system.message import Message, Request


async def _deaf(message: Message) -> Message | None:
    raise LookupError(f"nobody here handles {message.tag!r}: a driver asks and is not asked")


class Mailbox:
    """Must be made on the running loop. `on_lost` hears of each peer that died while somebody here was watching it."""

    def __init__(
        self,
        name: str,
        incarnation: int = 0,
        handle: Callable[[Message], Awaitable[Message | None]] = _deaf,
        limits: Limits | None = None,
        on_lost: Callable[[Link], None] | None = None,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.inbox = Inbox(name, handle)
        self._limits = limits or Limits()
        self._on_lost = on_lost
        self._links: dict[str, Link] = {}
        self._ids = itertools.count(1)
        self._closed = False

    def introduce(self, name: str, incarnation: int, wire: Wire) -> Link:
        """Make a peer known, or its next incarnation."""
        link = self._links.get(name)
        if link is not None:
            if link.incarnation >= incarnation:
                return link
            link.lose("it was restarted")
        link = Link((self.name, self.incarnation), (name, incarnation), wire, self._ids, self._limits, self._lost)
        self._links[name] = link
        return link

    def link(self, name: str) -> Link | None:
        return self._links.get(name)

    def ask[R: Message](
        self, to: ActorRef, request: Request[R], deadline_s: float | None = None, *, unless_at_work: bool = False
    ) -> CoroutineType[Any, Any, R]:
        """See `Port.ask`."""
        link = self._links.get(to.name)
        if link is None:
            return self._refuse(to)
        return link.ask(request, deadline_s, unless_at_work=unless_at_work)

    async def _refuse(self, to: ActorRef) -> Any:
        raise ActorLost(f"{to.name}: {self.name} was not introduced to it")

    def tell(self, to: ActorRef, message: Message) -> None:
        """See `Port.tell`."""
        link = self._links.get(to.name)
        if link is not None:
            link.tell(message)

    async def close(self) -> None:
        """Fail all asks, cancel all handlers."""
        self._closed = True
        for link in self._links.values():
            link.lose(f"{self.name} is closing")
        await self.inbox.close()
        await asyncio.sleep(0)  # let the cancelled calls go

    def _lost(self, link: Link) -> None:
        if self._on_lost is not None and not self._closed and self._links.get(link.peer) is link:
            self._on_lost(link)
