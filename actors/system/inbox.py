"""The answering half of a mailbox.

Invariants:
- the frames of one sender's lane are acted on in order, each once, however often and in whatever order they arrive;
- the ack of a frame, with the answers in it, is kept until the sender is known to have it, and returned for a resend;
- a handler is started in the turn in which its frame arrives, and never waits for another handler;
- answers that are not ready for the ack go out by the sender's long poll, and are kept until it acknowledges them;
- a later incarnation of a sender ends the earlier one: its frames are refused and its answers dropped.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from actors.system.actor import CannotGoOn
from actors.system.frames import (
    FRAME_BYTES,
    NO_ANSWER,
    fitting,
    pack_answers,
    pack_failure,
    pack_farewell,
    pack_message,
    pack_reason,
    unpack_frame,
)
from actors.system.message import Done, Message, from_fields

logger = logging.getLogger(__name__)

_NOTHING = pack_answers(0, [])
_DONE = Done()
_CLOSING = "it is ending"


class _Order:
    """Where one lane of one sender stands."""

    __slots__ = ("acks", "expected", "turns")

    def __init__(self) -> None:
        self.expected = 1
        self.acks: dict[int, bytes] = {}
        self.turns: dict[int, asyncio.Future[None]] = {}


class _Sender:
    """One incarnation of somebody who talks to us."""

    __slots__ = ("closed", "incarnation", "kept", "lanes", "late", "parked", "polls", "sequence")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.closed = False
        self.lanes = {"work": _Order(), "control": _Order()}
        self.late: list[bytes] = []
        self.kept = b""
        self.sequence = 0
        self.polls = 0
        self.parked: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.parked is not None and not self.parked.done():
            self.parked.set_result(None)

    def close(self) -> None:
        self.closed = True
        self.late.clear()
        self.wake()
        for order in self.lanes.values():
            for turn in order.turns.values():
                if not turn.done():
                    turn.set_result(None)


class Inbox:
    """Takes frames, runs `handle` on each message, and gives the answers back.

    It holds what arrives until `open()`, and answers after `close()` that the actor is gone.
    """

    def __init__(self, name: str, handle: Callable[[Message], Awaitable[Message | None]]) -> None:
        self._name = name
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._senders: dict[str, _Sender] = {}
        self._running: dict[asyncio.Task[bytes | None], None] = {}
        self._opened = asyncio.Event()
        self._closed = False

    def open(self) -> None:
        self._opened.set()

    async def close(self) -> None:
        """Refuse what arrives, cancel the handlers, and wait until they have ended."""
        self._closed = True
        self._opened.set()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # --- what the transport calls -------------------------------------------------------------

    async def frame(self, frame: bytes) -> bytes:
        """Act on a frame, or recognise it; returns its ack."""
        header, entries = unpack_frame(frame)
        if not self._opened.is_set():
            await self._opened.wait()
        sender = self._sender(header.sender, header.incarnation)
        if sender is None:
            return _NOTHING
        order = sender.lanes[header.lane]
        while header.sequence > order.expected:
            turn = order.turns.get(header.sequence)
            if turn is None:
                turn = order.turns[header.sequence] = self._loop.create_future()
            await asyncio.shield(turn)  # a doubled frame waits for the same turn
            if sender.closed:
                return _NOTHING
        if header.sequence < order.expected:
            return order.acks.get(header.sequence, _NOTHING)
        order.expected += 1
        for sequence in [known for known in order.acks if known < header.floor]:
            del order.acks[sequence]
        ack = order.acks[header.sequence] = self._act(sender, entries)
        order.turns.pop(header.sequence, None)
        next_turn = order.turns.get(order.expected)
        if next_turn is not None and not next_turn.done():
            next_turn.set_result(None)
        return ack

    async def poll(self, name: str, incarnation: int, seen: int) -> bytes:
        """Late answers for a sender; waits until there are some. Empty if another poll has taken its place."""
        sender = self._sender(name, incarnation)
        if sender is None:
            return b""
        sender.polls += 1
        ticket = sender.polls
        sender.wake()
        if seen < sender.sequence:
            return sender.kept  # it was lost on its way
        sender.kept = b""
        while not sender.late:
            sender.parked = parked = self._loop.create_future()
            await parked
            if sender.closed or ticket != sender.polls:
                return b""
        entries = list(fitting(sender.late))
        del sender.late[: len(entries)]
        sender.sequence += 1
        sender.kept = pack_answers(sender.sequence, entries)
        return sender.kept

    # --- acting -------------------------------------------------------------------------------

    def _sender(self, name: str, incarnation: int) -> _Sender | None:
        """The state of a sender; None for one that has a successor."""
        sender = self._senders.get(name)
        if sender is None or sender.incarnation < incarnation:
            if sender is not None:
                sender.close()
            sender = self._senders[name] = _Sender(incarnation)
        return sender if sender.incarnation == incarnation else None

    def _act(self, sender: _Sender, entries: list[Any]) -> bytes:
        """Start a handler for each message; returns the answers that are ready at once, as an ack."""
        if self._closed:
            return pack_answers(0, [pack_farewell(id, _CLOSING) for id, _, _ in entries if id != NO_ANSWER])
        ready: list[bytes] = []
        size = 0
        for id, tag, fields in entries:
            task = asyncio.Task(self._answer(id, tag, fields), loop=self._loop, eager_start=True)
            if not task.done():
                self._running[task] = None
                task.add_done_callback(partial(self._finish, sender))
                continue
            answer = task.result()
            if answer is None:
                continue
            size += len(answer)
            if size > FRAME_BYTES and ready:
                sender.late.append(answer)
            else:
                ready.append(answer)
        if sender.late:
            sender.wake()
        return pack_answers(0, ready)

    async def _answer(self, id: int, tag: str, fields: Any) -> bytes | None:
        try:
            reply = await self._handle(from_fields(tag, fields))
            return None if id == NO_ANSWER else pack_message(id, _DONE if reply is None else reply)
        except asyncio.CancelledError:
            if self._closed:
                return None if id == NO_ANSWER else pack_farewell(id, _CLOSING)
            logger.error("%s: the handler of %r was cancelled", self._name, tag)
            return None if id == NO_ANSWER else pack_failure(id, f"the handler of {tag!r} was cancelled")
        except CannotGoOn as reason:
            logger.exception("%s can't do %r", self._name, tag)
            return None if id == NO_ANSWER else pack_reason(id, str(reason))
        except Exception:  # whatever a handler raises is its asker's to know
            text = traceback.format_exc()
            logger.error("%s failed on %r\n%s", self._name, tag, text)
            return None if id == NO_ANSWER else pack_failure(id, f"failed on {tag!r}\n{text}")

    def _finish(self, sender: _Sender, task: asyncio.Task[bytes | None]) -> None:
        del self._running[task]
        answer = None if task.cancelled() else task.result()
        if answer is not None and not sender.closed:
            sender.late.append(answer)
            sender.wake()
