"""A stage in one process, on a virtual clock: the same actors, no processes, no waiting, the same run each time.

Invariants:
- all that happens follows from the parts, the seed and the fault plan (and `explore`): see `virtual_loop`;
- messages travel by reference (they are frozen) and take `Network.latency_s`; what one actor says to another
  on one lane arrives in that order, as mailboxes see to;
- a dead actor says nothing more, and what was on its way to it is lost; whoever waits for it gets `ActorLost` after
  `Network.death_seen_s`, and its next incarnation is there after `Network.restart_s`;
- no message reaches an actor before its `start()` has returned.

Every `wire_every`-th message is also encoded and decoded, to show that it can be sent.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Self

from actors.system.actor import Actor, ActorLost, ActorRef, HandlerFailed, seed_for
from actors.system.actor_faults import ActorFaultPlan
from actors.system.message import Done, Message, decode, encode
from actors.system.stage import ActorStartFailed, Death, Part
from actors.system.trace import Kind, Trace
from actors.system.virtual_faults import Weather
from actors.system.virtual_loop import NS, OWNER, VirtualLoop
from actors.system.virtual_port import Deadlines, VirtualBlobs, VirtualPort

logger = logging.getLogger(__name__)

_DONE = Done()
_DRIVER = "driver"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """How long things take between actors, seconds. Defaults: measured on Ray, or its mailboxes' limits."""

    latency_s: float = 0.001
    """One way."""
    jitter_s: float = 0.0
    """At most so much more, drawn evenly."""
    death_seen_s: float = 0.012
    restart_s: float = 3.0
    resend_s: float = 0.05
    """Until a lost frame is sent again."""
    give_up_s: float = 60.0
    """Until whoever can't reach an actor is told that it is lost."""


class Member:
    """One incarnation of one actor."""

    __slots__ = ("actor", "asks", "context", "held", "incarnation", "noticed", "part", "port", "restarts_left", "state")

    def __init__(self, part: Part, incarnation: int, restarts_left: int) -> None:
        self.part, self.incarnation, self.restarts_left = part, incarnation, restarts_left
        self.state: Literal["starting", "running", "gone"] = "starting"
        self.noticed = False
        """Whether its death has been."""
        self.asks: dict[asyncio.Future[Any], str] = {}
        """Who waits for an answer of this incarnation -> tag of the request."""
        self.held: list[Callable[[], None]] = []
        """What arrived before it had started."""
        self.context = contextvars.Context()
        self.context.run(OWNER.set, self.owner)
        self.actor: Actor | None = None
        self.port: VirtualPort | None = None

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def owner(self) -> str:
        return f"{self.part.name}/{self.incarnation}"


class VirtualStage:
    """A `Stage` in virtual time; to be opened on a `VirtualLoop`.

    Example:
        async def main() -> None:
            async with VirtualStage(seed=0) as stage:
                (echo,) = await stage.spawn(Part(name="echo", actor=Echo))
                await stage.port.ask(echo, Ping(text="hello"), deadline_s=5)

        run_virtual(main())
    """

    port: VirtualPort

    def __init__(
        self,
        *,
        seed: int,
        network: Network | None = None,
        plan: ActorFaultPlan | None = None,
        trace: Trace | None = None,
        wire_every: int = 0,
    ) -> None:
        self.trace = trace or Trace()
        self.deaths: list[Death] = []
        self.network = network or Network()
        self._seed, self._wire_every = seed, wire_every
        self._plan = plan or ActorFaultPlan()
        self._members: dict[str, Member] = {}
        self._listeners: list[Callable[[Death], None]] = []
        self._blobs: dict[str, Any] = {}
        self._latency = round(self.network.latency_s * NS)
        self._sent = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "open a virtual stage inside run_virtual()"
        self.loop = loop
        loop.set_line(self._latency)
        self.deadlines = Deadlines(loop, self.note)
        jitter = Random(seed_for(self._seed, "network")) if self.network.jitter_s else None
        self._weather = Weather(self._plan, self.network.resend_s, self.network.jitter_s, jitter)
        driver = Member(Part(name=_DRIVER, actor=Actor), 0, 0)
        driver.state = "running"
        self._members[_DRIVER] = driver
        self.port = driver.port = self._port(driver)
        for fault in self._plan.faults:
            if fault.kind == "kill":
                loop.call_at_ns(round(fault.at * NS), self._kill_planned, fault.actor)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def on_death(self, listener: Callable[[Death], None]) -> None:
        """Call `listener` whenever an actor dies without being asked to stop."""
        self._listeners.append(listener)

    def actor(self, ref: ActorRef) -> Actor:
        """The object that plays a part now, for those who watch a run. Raises `LookupError` for an unknown actor."""
        actor = self._member(ref).actor
        assert actor is not None, "an actor is constructed when it is recruited"
        return actor

    def blob(self, key: str) -> Any:
        """What a blob holds, None if it was dropped; for those who watch a run."""
        return self._blobs.get(key)

    def runs(self, ref: ActorRef) -> bool:
        """Whether an actor has started and not died."""
        return self._member(ref).state == "running"

    def _member(self, ref: ActorRef) -> Member:
        if ref.name not in self._members:
            raise LookupError(f"no actor {ref.name!r} on this stage")
        return self._members[ref.name]

    # --- coming and going -------------------------------------------------------------------------

    async def spawn(self, *parts: Part) -> list[ActorRef]:
        """See `Stage.spawn`. Raises `ValueError` for names that are taken."""
        for part in parts:
            known = self._members.get(part.name)
            if known is not None and known.state != "gone":
                raise ValueError(f"the name {part.name!r} is taken; names of actors are unique on a stage")
        members: list[Member] = []
        try:
            for part in parts:
                former = self._members.get(part.name)
                members.append(self._recruit(part, 0 if former is None else former.incarnation + 1, part.restarts))
            await asyncio.gather(*[self._start(member) for member in members])
        except BaseException:  # cancelled too: those that started must not stay behind
            for member in members:
                self._end(member)
                self._notice(member, "it was started with others that could not start")
            raise
        return [ActorRef(part.name) for part in parts]

    def _recruit(self, part: Part, incarnation: int, restarts_left: int) -> Member:
        member = Member(part, incarnation, restarts_left)
        member.port = self._port(member)
        try:
            member.actor = member.context.run(lambda: part.actor(**copy.deepcopy(part.arguments)))
        except Exception as error:  # a boundary: whatever it is, the stage's user must read it
            raise ActorStartFailed(f"{part.name} could not be made\n{traceback.format_exc()}") from error
        member.actor.port = member.port
        self._members[part.name] = member
        return member

    async def _start(self, member: Member) -> None:
        assert member.actor is not None
        try:
            await self.loop.create_task(member.actor.start(), context=member.context.copy())
        except asyncio.CancelledError:
            if member.state == "gone":
                raise ActorStartFailed(f"{member.name} died while it started") from None
            raise
        except Exception as error:  # see _recruit
            raise ActorStartFailed(f"{member.name} could not start\n{traceback.format_exc()}") from error
        member.state = "running"
        self.note("start", member.name, "", str(member.incarnation))
        held, member.held = member.held, []
        for deliver in held:
            deliver()

    async def kill(self, ref: ActorRef) -> None:
        """See `Stage.kill`; returns when the death has been noticed. Raises `LookupError` for an unknown actor."""
        self.crash(self._member(ref), "it was killed")
        await asyncio.sleep(self.network.death_seen_s)

    def _kill_planned(self, name: str) -> None:
        member = self._members.get(name)
        if member is not None and member.state != "gone":
            self.note("fault", "", name, "kill")
            self.crash(member, "the fault plan killed it")

    def crash(self, member: Member, reason: str) -> None:
        """End an actor as a crash would."""
        if member.state == "gone" or self._closed:
            return
        was_running = member.state == "running"
        self._end(member)
        self.note("death", member.name, "", str(member.incarnation))
        seen = self.loop.now_ns() + round(self.network.death_seen_s * NS)
        if was_running or member.incarnation:
            self.loop.call_at_ns(seen, self._death_seen, member, reason, context=contextvars.Context())

    def _end(self, member: Member) -> None:
        member.state = "gone"
        member.held.clear()
        for task in self.loop.tasks_of(member.owner):
            task.cancel()
        for key in [key for key in self._blobs if key.startswith(member.owner + "/")]:
            del self._blobs[key]

    def _death_seen(self, member: Member, reason: str) -> None:
        self._notice(member, reason)
        death = Death(member.name, member.incarnation, reason, member.restarts_left > 0)
        self.deaths.append(death)
        for listener in self._listeners:
            listener(death)
        if member.restarts_left > 0 and not self._closed:
            self.loop.create_task(self._restart(member))

    def _notice(self, member: Member, reason: str) -> None:
        """Fail all who wait for a dead actor, now and later."""
        member.noticed = True
        for answer, tag in list(member.asks.items()):
            self._lose(answer, member.name, tag, reason)
        member.asks.clear()

    async def _restart(self, member: Member) -> None:
        await asyncio.sleep(self.network.restart_s)
        if self._closed:
            return
        successor = self._recruit(member.part, member.incarnation + 1, member.restarts_left - 1)
        try:
            await self._start(successor)
        except ActorStartFailed as error:
            self._end(successor)
            self._death_seen(successor, f"it did not start again: {error}")

    async def close(self) -> None:
        """See `Stage.close`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        running = [member for member in self._members.values() if member.state == "running" and member.actor]
        for member in running:
            tasks = self.loop.tasks_of(member.owner)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert member.actor is not None
            try:
                await self.loop.create_task(member.actor.stop(), context=member.context.copy())
            except Exception:  # the stage goes on closing whatever one actor does
                logger.exception("%s did not stop cleanly", member.name)
            member.state = "gone"

    # --- messages ---------------------------------------------------------------------------------

    def send(self, source: Member, to: str, message: Message, answer: asyncio.Future[Any] | None) -> Member | None:
        """Put a message on its way; returns the incarnation that is to answer, None if there is none."""
        target = self._members.get(to)
        if source.state == "gone" or target is None or target.noticed:
            if answer is not None:
                self._lose(answer, to, message.tag, "it is gone" if target else f"{source.name} does not know it")
            return None
        if self._wire_every:
            self._sent += 1
            if self._sent % self._wire_every == 0:
                message = _over_the_wire(message)
        if answer is not None:
            target.asks[answer] = message.tag
        now = self.loop.now_ns()
        if self._weather.calm:
            self.loop.put_on_line(self._arrive, source, target, message, answer, context=target.context)
            return target
        travel = self._weather.travel(now, source.name, to, type(message).lane)
        if travel.fault:
            self.note("fault", source.name, to, f"{travel.fault} {message.tag}")
        if travel.lost:
            if answer is not None:
                given_up = now + round(self.network.give_up_s * NS)
                self.loop.call_at_ns(given_up, self._lose, answer, to, message.tag, "it could not be reached")
            return target
        arrival = self._weather.in_order(now + self._latency + travel.extra_ns, source.name, to, type(message).lane)
        for _ in range(travel.copies):
            self.loop.call_at_ns(arrival, self._arrive, source, target, message, answer, context=target.context)
        return target

    def _arrive(self, source: Member, target: Member, message: Message, answer: asyncio.Future[Any] | None) -> None:
        if target.state != "running":
            if target.state == "starting":
                target.held.append(lambda: self._arrive(source, target, message, answer))
            return
        kind = "tell" if answer is None else "ask"
        self.note(kind, source.name, target.name, message.tag, message)
        work = self._handle(source, target, message, answer)
        self.loop.create_task(work, eager_start=True)

    async def _handle(
        self, source: Member, target: Member, message: Message, answer: asyncio.Future[Any] | None
    ) -> None:
        actor = target.actor
        assert actor is not None
        try:
            reply = await actor.handle(message)
        except asyncio.CancelledError:
            if target.state == "gone" or self._closed:
                return
            reply = HandlerFailed(f"{target.name}: the handler of {message.tag!r} was cancelled")
        except Exception:  # whatever a handler raises is its asker's to know
            text = traceback.format_exc()
            if answer is None:
                logger.error("%s failed on %r\n%s", target.name, message.tag, text)
            reply = HandlerFailed(f"{target.name}: failed on {message.tag!r}\n{text}")
        if answer is None or target.state == "gone":
            return
        if isinstance(reply, HandlerFailed):
            self.note("failed", target.name, source.name, message.tag)
        else:
            reply = _DONE if reply is None else reply
            self.note("answer", target.name, source.name, reply.tag, reply, message)
        if self._weather.calm:
            self.loop.put_on_line(_settle, answer, reply, context=source.context)
        else:
            now = self.loop.now_ns()
            arrival = now + self._latency + self._weather.frozen_ns(now, source.name)
            self.loop.call_at_ns(arrival, _settle, answer, reply, context=source.context)

    def _lose(self, answer: asyncio.Future[Any], name: str, tag: str, reason: str) -> None:
        if not answer.done():
            self.note("lost", "", name, tag)
            answer.set_exception(ActorLost(f"{name}: {reason}"))

    def note(
        self, kind: Kind, source: str, target: str, what: str, message: Message | None = None, *of: Message
    ) -> None:
        try:
            self.trace.add(self.loop.now_ns(), kind, source, target, what, message, *of)
        except BaseException as error:  # an observer ends the run, also from within a task
            self.loop.fail(error)

    def _port(self, member: Member) -> VirtualPort:
        return VirtualPort(self, member, seed=self._seed, blobs=VirtualBlobs(self._blobs, member.owner))


def _settle(answer: asyncio.Future[Any], reply: Message | HandlerFailed) -> None:
    if answer.done():
        return  # too late
    if isinstance(reply, HandlerFailed):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _over_the_wire(message: Message) -> Message:
    received = decode(message.tag, encode(message))
    assert received == message, f"{message.tag} changes on the wire: {message!r} became {received!r}"
    return received
