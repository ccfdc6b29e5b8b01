"""Carries messages between the members of a virtual stage.

Invariants:
- messages travel by reference (they are frozen) and take `Network.latency_s`; what one actor says to another
  on one lane arrives in that order, as mailboxes see to;
- no message reaches an actor before its `start()` has returned;
- a dead actor says nothing more, and what was on its way to it is lost; whoever waits for it gets `ActorLost` when its
  death is noticed.

Every `wire_every`-th message is also encoded and decoded, to show that it can be sent.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from random import Random
from typing import Any

from actors.system.actor import ActorError, ActorLost, CannotGoOn, HandlerFailed, seed_for
from actors.system.actor_faults import ActorFaultPlan
from actors.system.message import Done, Message, decode, encode
from actors.system.trace import Kind, Trace
from actors.system.virtual_faults import Weather
from actors.system.virtual_loop import NS, VirtualLoop
from actors.system.virtual_member import Member, Network

logger = logging.getLogger(__name__)

_DONE = Done()


class Post:
    """See the module's docstring. `members` are the stage's, by name, each name's latest incarnation."""

    def __init__(
        self,
        loop: VirtualLoop,
        members: dict[str, Member],
        *,
        seed: int,
        network: Network,
        plan: ActorFaultPlan,
        trace: Trace,
        wire_every: int,
    ) -> None:
        self._loop, self._members, self._trace = loop, members, trace
        self._give_up_ns = round(network.give_up_s * NS)
        self._latency_ns = round(network.latency_s * NS)
        jitter = Random(seed_for(seed, "network")) if network.jitter_s else None
        self._weather = Weather(plan, network.resend_s, network.jitter_s, jitter)
        self._calm = self._weather.calm
        self._wire_every, self._until_wired = wire_every, wire_every
        self.closed = False
        """Whether the stage is closing: handlers that are cancelled then answer nobody."""
        loop.set_line(self._latency_ns)

    def send(self, source: Member, to: str, message: Message, answer: asyncio.Future[Any] | None) -> Member | None:
        """Put a message on its way; returns the incarnation that is to answer, None if there is none."""
        target = self._members.get(to)
        if source.state == "gone" or target is None or target.noticed:
            if answer is not None:
                self.lose(answer, to, message.tag, "it is gone" if target else f"{source.name} does not know it")
            return None
        if self._wire_every:
            self._until_wired -= 1
            if not self._until_wired:
                self._until_wired = self._wire_every
                message = _over_the_wire(message)
        if answer is not None:
            target.asks[answer] = message.tag
        if self._calm:
            self._loop.put_on_line(self._arrive, source, target, message, answer, context=target.context)
        else:
            self._send_through_weather(source, target, message, answer)
        return target

    def _send_through_weather(
        self, source: Member, target: Member, message: Message, answer: asyncio.Future[Any] | None
    ) -> None:
        now, to, lane = self._loop.now_ns(), target.name, type(message).lane
        travel = self._weather.travel(now, source.name, to, lane)
        if travel.fault:
            self.note("fault", source.name, to, f"{travel.fault} {message.tag}")
        if travel.lost:
            if answer is not None:
                reason = "it could not be reached"
                self._loop.call_at_ns(now + self._give_up_ns, self.lose, answer, to, message.tag, reason)
            return
        arrival = self._weather.in_order(now + self._latency_ns + travel.extra_ns, source.name, to, lane)
        for _ in range(travel.copies):
            self._loop.call_at_ns(arrival, self._arrive, source, target, message, answer, context=target.context)

    def _arrive(self, source: Member, target: Member, message: Message, answer: asyncio.Future[Any] | None) -> None:
        if target.state != "running":
            if target.state == "starting":
                target.held.append(lambda: self._arrive(source, target, message, answer))
            return
        self.note("tell" if answer is None else "ask", source.name, target.name, message.tag, message)
        self._loop.create_task(self._handle(source, target, message, answer), eager_start=True)

    async def _handle(
        self, source: Member, target: Member, message: Message, answer: asyncio.Future[Any] | None
    ) -> None:
        actor = target.actor
        assert actor is not None
        try:
            reply = await actor.handle(message)
        except asyncio.CancelledError:
            if target.state == "gone" or self.closed:
                return
            reply = HandlerFailed(f"{target.name}: the handler of {message.tag!r} was cancelled")
        except CannotGoOn as reason:
            reply = CannotGoOn(str(reason))
        except Exception:  # whatever a handler raises is its asker's to know
            text = traceback.format_exc()
            if answer is None:
                logger.error("%s failed on %r\n%s", target.name, message.tag, text)
            reply = HandlerFailed(f"{target.name}: failed on {message.tag!r}\n{text}")
        if answer is None or target.state == "gone":
            return
        if isinstance(reply, ActorError):
            self.note("failed", target.name, source.name, message.tag)
        else:
            reply = _DONE if reply is None else reply
            self.note("answer", target.name, source.name, reply.tag, reply, message)
        if self._calm:
            self._loop.put_on_line(_settle, answer, reply, context=source.context)
        else:
            now = self._loop.now_ns()
            arrival = now + self._latency_ns + self._weather.frozen_ns(now, source.name)
            self._loop.call_at_ns(arrival, _settle, answer, reply, context=source.context)

    def lose(self, answer: asyncio.Future[Any], name: str, tag: str, reason: str) -> None:
        """Tell whoever waits for `answer` that it will not come."""
        if not answer.done():
            self.note("lost", "", name, tag)
            answer.set_exception(ActorLost(f"{name}: {reason}"))

    def lose_all(self, member: Member, reason: str) -> None:
        """Fail all who wait for a dead actor, now and later."""
        member.noticed = True
        for answer, tag in list(member.asks.items()):
            self.lose(answer, member.name, tag, reason)
        member.asks.clear()

    def note(
        self,
        kind: Kind,
        source: str,
        target: str,
        what: str,
        message: Message | None = None,
        request: Message | None = None,
    ) -> None:
        """Put an event into the trace."""
        try:
            self._trace.add(self._loop.now_ns(), kind, source, target, what, message, request)
        except BaseException as error:  # an observer ends the run, also from within a task
            self._loop.fail(error)


def _settle(answer: asyncio.Future[Any], reply: Message | ActorError) -> None:
    if answer.done():
        return  # too late
    if isinstance(reply, ActorError):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _over_the_wire(message: Message) -> Message:
    received = decode(message.tag, encode(message))
    assert received == message, f"{message.tag} changes on the wire: {message!r} became {received!r}"
    return received
