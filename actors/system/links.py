"""The asking half of a mailbox: one `Link` for each peer incarnation that somebody here talks to.

Invariants:
- everything said to the peer in one turn of the loop leaves in one frame per lane;
- a lane sends when nothing of it is under way, or when a whole frame is full and fewer than `window` are under way;
  so light traffic coalesces, and heavy traffic keeps both ends busy;
- a frame whose outcome is unknown is sent again, byte for byte, until the peer answers it or is known to be dead;
- each ask ends: with its answer, its deadline (`patience` says when that is), the peer's death, or after `give_up_s` of
  unreachability;
- an ask that ended, for whatever reason, is held nowhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from actors.system.actor import ActorLost, CannotGoOn, DeadlineExceeded, HandlerFailed
from actors.system.frames import (
    FRAME_BYTES,
    NO_ANSWER,
    Header,
    fitting,
    pack_frame,
    pack_message,
    unpack_answers,
)
from actors.system.message import Message, MessageError, Request, from_fields
from actors.system.patience import NEVER_SEEN, Looks, gave_up


class PeerDied(Exception):
    """The peer's process is gone for good."""


class PeerUnreachable(Exception):
    """The call failed; whether the peer has seen it is unknown."""


class Wire(Protocol):
    """Carries bytes to one incarnation of one peer. Calls may arrive twice, late, and in any order.

    Both raise `PeerDied` or `PeerUnreachable`.
    """

    async def frame(self, frame: bytes) -> bytes:
        """Deliver a frame; returns the answers that were ready at once."""
        ...

    async def poll(self, sender: str, incarnation: int, seen: int) -> bytes:
        """Wait for late answers; `seen` acknowledges the batches up to that number."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard a mailbox tries."""

    window: int = 4
    """Frames under way per lane."""
    retry_s: float = 0.05
    """Pause before a frame of unknown outcome is sent again; it doubles up to `retry_max_s`."""
    retry_max_s: float = 1.0
    give_up_s: float = 60.0
    """After so long without reaching the peer, whoever waits for it is told `ActorLost`."""


class _Lane:
    """What waits for its frame, and the sequence numbers of the frames under way."""

    __slots__ = ("name", "outbox", "scheduled", "sequence", "size", "under_way")

    def __init__(self, name: str) -> None:
        self.name = name
        self.outbox: OrderedDict[int, bytes] = OrderedDict()
        self.size = 0
        self.sequence = 0
        self.under_way: dict[int, None] = {}
        self.scheduled = False

    def put(self, id: int, entry: bytes) -> None:
        self.outbox[id] = entry
        self.size += len(entry)

    def withdraw(self, id: int) -> None:
        entry = self.outbox.pop(id, None)
        if entry is not None:
            self.size -= len(entry)

    def take(self) -> list[bytes]:
        """The entries of the next frame."""
        entries = list(fitting(self.outbox.values()))
        if len(entries) == len(self.outbox):
            self.outbox.clear()
        else:
            for _ in entries:
                self.outbox.popitem(last=False)
        self.size -= sum(map(len, entries))
        return entries

    def clear(self) -> None:
        self.outbox.clear()
        self.size = 0


class _Deadline:
    """When an ask is given up, if its answer has not come by then, and `looks` does not say otherwise."""

    __slots__ = ("_answer", "_looks", "_loop", "_peer", "_seconds", "_timer", "seen", "tag")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        answer: asyncio.Future[Any],
        peer: str,
        tag: str,
        looks: Looks | None,
    ) -> None:
        self._loop, self._seconds, self._answer, self._peer, self.tag = loop, seconds, answer, peer, tag
        self._looks = looks
        self.seen: object = NEVER_SEEN
        self.wait_on()

    def wait_on(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._late)

    def cancel(self) -> None:
        self._timer.cancel()

    def over(self) -> bool:
        return self._answer.done()

    def give_up(self) -> None:
        text = gave_up(self._peer, self.tag, self._seconds, self.seen)
        self._answer.set_exception(DeadlineExceeded(text))

    def _late(self) -> None:
        if self.over():
            return
        if self._looks is None:
            self.give_up()
        else:
            self._looks.late(self._peer, self)


class Link:
    """All that `sender` (name, incarnation) says to one incarnation of one peer."""

    def __init__(
        self,
        sender: tuple[str, int],
        peer: tuple[str, int],
        wire: Wire,
        ids: Iterator[int],
        limits: Limits,
        on_lost: Callable[[Link], None],
    ) -> None:
        self.peer, self.incarnation = peer
        self.lost: str | None = None
        """Why the peer is gone, once it is."""
        self.ended = asyncio.Event()
        """Set when the peer is gone."""
        self.frames = 0
        """Frames sent, without those sent again."""
        self._sender = sender
        self._wire = wire
        self._ids = ids
        self._limits = limits
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._lanes = {"work": _Lane("work"), "control": _Lane("control")}
        self._asks: dict[int, asyncio.Future[Any]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._watched = False
        self._looks = Looks(lambda _, request, deadline_s: self.ask(request, deadline_s), self._spawn)

    # --- saying -------------------------------------------------------------------------------

    async def ask[R: Message](
        self, request: Request[R], deadline_s: float | None, *, unless_at_work: bool = False
    ) -> R:
        """See `Port.ask`."""
        if self.lost is not None:
            raise ActorLost(f"{self.peer}: {self.lost}")
        id = next(self._ids)
        entry = pack_message(id, request)
        lane = self._lanes[request.lane]
        self._asks[id] = answer = self._loop.create_future()
        lane.put(id, entry)
        if not lane.scheduled:
            self._schedule(lane)
        if not self._watched:
            self.watch()
        deadline = None
        if deadline_s is not None:
            deadline = _Deadline(
                self._loop, deadline_s, answer, self.peer, request.tag, self._looks if unless_at_work else None
            )
        try:
            return await answer
        finally:
            if deadline is not None:
                deadline.cancel()
            if self._asks.pop(id, None) is not None:
                lane.withdraw(id)

    def tell(self, message: Message) -> None:
        """See `Port.tell`."""
        if self.lost is None:
            lane = self._lanes[message.lane]
            lane.put(next(self._ids), pack_message(NO_ANSWER, message))
            self._schedule(lane)

    def watch(self) -> None:
        """Keep a poll parked at the peer: it brings late answers and tells of the peer's death."""
        if not self._watched and self.lost is None:
            self._watched = True
            self._spawn(self._poll())

    # --- sending ------------------------------------------------------------------------------

    def _schedule(self, lane: _Lane) -> None:
        if not lane.scheduled:
            lane.scheduled = True
            self._loop.call_soon(self._pump, lane)

    def _pump(self, lane: _Lane) -> None:
        lane.scheduled = False
        while lane.outbox and (
            not lane.under_way or (lane.size >= FRAME_BYTES and len(lane.under_way) < self._limits.window)
        ):
            lane.sequence += 1
            lane.under_way[lane.sequence] = None
            floor = next(iter(lane.under_way))
            frame = pack_frame(Header(*self._sender, lane.name, lane.sequence, floor), lane.take())
            self.frames += 1
            self._spawn(self._carry(lane, lane.sequence, frame))

    async def _carry(self, lane: _Lane, sequence: int, frame: bytes) -> None:
        ack = await self._through(partial(self._wire.frame, frame))
        if ack is None:
            return
        del lane.under_way[sequence]
        if lane.size >= FRAME_BYTES:
            self._pump(lane)  # the peer works on while we read
        self._settle(unpack_answers(ack)[1])
        self._schedule(lane)  # after those who got their answer have asked again

    async def _poll(self) -> None:
        seen = 0
        while True:
            batch = await self._through(partial(self._wire.poll, *self._sender, seen))
            if batch is None:
                return
            if not batch:  # another poll took this one's place
                await asyncio.sleep(self._limits.retry_s)
                continue
            number, entries = unpack_answers(batch)
            if number > seen:
                seen = number
                self._settle(entries)

    async def _through(self, call: Callable[[], Awaitable[bytes]]) -> bytes | None:
        """Repeat `call` until its outcome is known; None if the peer is gone."""
        pause, silent_since = self._limits.retry_s, None
        while self.lost is None:
            try:
                return await call()
            except PeerDied as death:
                self.lose(str(death))
            except PeerUnreachable as failure:
                now = self._loop.time()
                silent_since = now if silent_since is None else silent_since
                if now - silent_since >= self._limits.give_up_s:
                    silent_since = now
                    self._disappoint(f"unreachable for {self._limits.give_up_s:g} s ({failure})")
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._limits.retry_max_s)
        return None

    def _settle(self, entries: list[Any]) -> None:
        """Hand the answers to those who wait for them; the others came too late."""
        for id, tag, fields in entries:
            answer = self._asks.pop(id, None)
            if answer is None or answer.done():
                continue
            if tag is None:
                answer.set_exception(HandlerFailed(f"{self.peer}: {fields}"))
                continue
            if tag is False:
                answer.set_exception(CannotGoOn(fields))
                continue
            if not tag:
                answer.set_exception(ActorLost(f"{self.peer}: {fields}"))
                continue
            try:
                answer.set_result(from_fields(tag, fields))
            except MessageError as error:
                answer.set_exception(HandlerFailed(f"{self.peer} answered what is no message: {error}"))

    # --- ending -------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """The peer is gone: fail all who wait for it, now and later."""
        if self.lost is not None:
            return
        self.lost = reason
        self.ended.set()
        self._disappoint(reason)
        self.release()
        self._on_lost(self)

    def release(self) -> None:
        """Cancel the calls under way."""
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _disappoint(self, reason: str) -> None:
        for lane in self._lanes.values():
            lane.clear()
        asks, self._asks = self._asks, {}
        for answer in asks.values():
            if not answer.done():
                answer.set_exception(ActorLost(f"{self.peer}: {reason}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours: whoever waits must not wait for ever.
            self._loop.call_exception_handler({"message": f"link to {self.peer} broke", "exception": error})
            self.lose(f"the link broke: {error!r}")
