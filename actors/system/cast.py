"""The cast of a stage of processes: who plays what in which incarnation, how they come up, and what follows a death.

Knows nothing of how processes are made or reached: that is the fabric's.

Invariants:
- new actors are all constructed before they are introduced, and introduced to everybody before any of them starts;
- when one of those spawned together fails, all of them end;
- a death while running is reported once, and followed by the next incarnation as often as the part allows;
- a death while starting belongs to whoever waits for the start;
- an actor that is there but answers no ping for `frozen_after_s` is killed, and then treated as any that died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Literal

import psutil

from actors.system.actor import ActorRef
from actors.system.fabric import Fabric, Peers
from actors.system.host import importable
from actors.system.links import Link, PeerDied, PeerUnreachable
from actors.system.mailbox import Mailbox
from actors.system.stage import ActorStartFailed, Death, Part
from actors.system.together import all_done
from policies.restarts import RestartBudget

logger = logging.getLogger(__name__)

BEATS = 4
"""Looks at each actor in the time after which it is taken for frozen."""


class Member:
    """One incarnation of one actor."""

    __slots__ = ("beats", "budget", "epitaph", "incarnation", "part", "pid", "ping", "reference", "since_s", "state")

    def __init__(self, part: Part, incarnation: int, budget: RestartBudget, reference: Any) -> None:
        self.part = part
        self.incarnation = incarnation
        self.budget = budget
        """Of all incarnations together."""
        self.reference = reference
        self.since_s: float | None = None
        """When its start was through, by the loop's clock."""
        self.ping: asyncio.Task[None] | None = None
        self.beats = 0
        """For which it has left a ping unanswered."""
        self.pid = 0
        self.state: Literal["starting", "running", "gone"] = "starting"
        self.epitaph = ""

    @property
    def name(self) -> str:
        return self.part.name


class Cast:
    """The actors of one stage. `recruit` asks for the process of a part's next incarnation, and returns its reference.

    `mailbox`, to be set before the first spawn, is the driver's; its `on_lost` has to call `lost`.
    """

    def __init__(
        self,
        fabric: Fabric,
        recruit: Callable[[Part, int], Any],
        *,
        log_dir: Path | None,
        start_timeout_s: float,
        grace_s: float,
        frozen_after_s: float,
        local: bool,
    ) -> None:
        self.deaths: list[Death] = []
        self.peers: Peers = {}
        self.mailbox: Mailbox | None = None
        self._fabric = fabric
        self._recruit_process = recruit
        self._log_dir = log_dir
        self._start_timeout_s, self._grace_s = start_timeout_s, grace_s
        self._frozen_after_s = frozen_after_s
        self._watching = False
        self._local = local
        self._members: dict[str, Member] = {}
        self._listeners: list[Callable[[Death], None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing = False

    def on_death(self, listener: Callable[[Death], None]) -> None:
        self._listeners.append(listener)

    def member(self, ref: ActorRef) -> Member:
        """Raises `LookupError` for an unknown actor."""
        member = self._members.get(ref.name)
        if member is None:
            raise LookupError(f"no actor {ref.name!r} on this stage")
        return member

    def present(self) -> list[Part]:
        """The parts that are played now, or about to be."""
        return [member.part for member in self._members.values() if member.state != "gone"]

    # --- coming -------------------------------------------------------------------------------

    async def spawn(self, parts: Iterable[Part]) -> list[ActorRef]:
        """See `Stage.spawn`. Raises `ValueError` for names that are taken and classes that can't be imported."""
        parts = list(parts)
        self._check(parts)
        members: list[Member] = []
        try:
            for part in parts:
                former = self._members.get(part.name)
                budget = RestartBudget(part.restarts, part.restart_window_s)
                members.append(self._recruit(part, 0 if former is None else former.incarnation + 1, budget))
            await self._bring_up(members)
        except BaseException:  # cancelled too: those that started must not stay behind
            await self._dismiss(members)
            raise
        if not self._watching:
            self._watching = True
            self._beside(self._watch_for_frozen())
        return [ActorRef(part.name) for part in parts]

    def _check(self, parts: list[Part]) -> None:
        if self._closing:
            raise ValueError("the stage is closed; open another one")
        taken = {part.name for part in self.present()}
        if self.mailbox is not None:
            taken.add(self.mailbox.name)
        for part in parts:
            if part.name in taken:
                raise ValueError(f"the name {part.name!r} is taken; names of actors are unique on a stage")
            if "/" in part.name:
                raise ValueError(f"the name {part.name!r} holds a '/'; leave it out")
            taken.add(part.name)
            importable(part)

    def _recruit(self, part: Part, incarnation: int, budget: RestartBudget) -> Member:
        reference = self._recruit_process(part, incarnation)
        member = self._members[part.name] = Member(part, incarnation, budget, reference)
        return member

    async def _bring_up(self, members: list[Member]) -> None:
        """Construct, introduce, start. Raises `ActorStartFailed`."""
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await all_done(self._construct(member) for member in members)
                await self._introduce(members)
                await all_done(self._start(member) for member in members)
        except TimeoutError as error:
            late = ", ".join(member.name for member in members if member.state == "starting")
            raise ActorStartFailed(f"{late}: not started within {self._start_timeout_s:g} s") from error

    async def _construct(self, member: Member) -> None:
        assert self.mailbox is not None
        member.pid, failure = await self._or_fail(member, self._fabric.call(member.reference, "construct"))
        if failure:
            raise ActorStartFailed(f"{member.name} could not be made\n{failure}")
        self.peers[member.name] = member.incarnation, member.reference
        self.mailbox.introduce(member.name, member.incarnation, self._fabric.wire(member.reference)).watch()
        self._beside(self._await_epitaph(member))

    async def _introduce(self, members: list[Member]) -> None:
        """Everybody to the new ones, the new ones to everybody."""
        fresh = {member.name: self.peers[member.name] for member in members}
        calls: list[Coroutine[Any, Any, Any]] = []
        for member in self._members.values():
            if member in members:
                calls.append(self._or_fail(member, self._fabric.call(member.reference, "introduce", self.peers)))
            elif member.pid and member.state != "gone":
                calls.append(_quietly(self._fabric.call, member.reference, "introduce", fresh))
        await all_done(calls)

    async def _start(self, member: Member) -> None:
        assert self.mailbox is not None
        failure = await self._or_fail(member, self._fabric.call(member.reference, "start"))
        if failure:
            raise ActorStartFailed(f"{member.name} could not start\n{failure}")
        member.state, member.since_s = "running", asyncio.get_running_loop().time()
        link = self.mailbox.link(member.name)
        if link is not None and link.lost is not None:  # it died between its answer and now
            self.lost(link)

    async def _or_fail[T](self, member: Member, call: Awaitable[T]) -> T:
        try:
            return await call
        except (PeerDied, PeerUnreachable) as error:
            await asyncio.sleep(0)  # its epitaph may be just behind
            where = "" if self._log_dir is None else f"; see {self._log_dir / member.name}.log"
            raise ActorStartFailed(f"{member.name} died while it started: {member.epitaph or error}{where}") from error

    # --- dying --------------------------------------------------------------------------------

    def lost(self, link: Link) -> None:
        """The driver's parked poll came back with a death."""
        member = self._members.get(link.peer)
        if (
            member is None
            or member.incarnation != link.incarnation
            or member.state != "running"  # else whoever starts it, or ended it, knows
            or self._closing
        ):
            return
        member.state = "gone"
        pause_s = self._pause_after_death(member)
        self._report(member, member.epitaph or link.lost or "", restarting=pause_s is not None)
        self._fabric.kill(member.reference)  # frees what is still held for it
        if pause_s is not None:
            self._beside(self._restart(member, pause_s))

    def _pause_after_death(self, member: Member) -> float | None:
        now_s = asyncio.get_running_loop().time()
        return member.budget.pause_after_death(now_s, 0.0 if member.since_s is None else now_s - member.since_s)

    def _report(self, member: Member, reason: str, *, restarting: bool) -> None:
        death = Death(member.name, member.incarnation, reason, restarting)
        self.deaths.append(death)
        if not self._listeners:  # else they tell it in their own way
            logger.warning("%s (incarnation %d) died: %s", death.name, death.incarnation, death.reason)
        for listener in self._listeners:
            listener(death)

    async def _restart(self, member: Member, pause_s: float | None) -> None:
        """Put the next incarnation in a dead actor's place, as often as its part allows."""
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            member = self._recruit(member.part, member.incarnation + 1, member.budget)
            try:
                await self._bring_up([member])
                return
            except ActorStartFailed as error:
                await self._dismiss([member])
                pause_s = self._pause_after_death(member)
                self._report(member, str(error), restarting=pause_s is not None)

    # --- freezing -----------------------------------------------------------------------------

    async def _watch_for_frozen(self) -> None:
        """Ping everybody; kill those that have left a ping unanswered for `BEATS` beats."""
        loop, beat_s = asyncio.get_running_loop(), self._frozen_after_s / BEATS
        while True:
            due_s = loop.time() + beat_s
            await asyncio.sleep(beat_s)
            late = loop.time() - due_s > beat_s  # this process was the one that did nothing
            for member in list(self._members.values()):
                if member.state == "running":
                    self._beat(member, late)

    def _beat(self, member: Member, late: bool) -> None:
        if member.ping is None or member.ping.done():
            member.beats = 0
            member.ping = self._beside(_quietly(self._fabric.call, member.reference, "ping"))
        elif not late:
            member.beats += 1
            if member.beats == BEATS:
                member.epitaph = f"it answered nothing for {self._frozen_after_s:g} s, and was killed"
                self._fabric.kill(member.reference)
                if self._local and _alive(member):  # Ray asks it to end itself, and it hears nothing
                    os.kill(member.pid, signal.SIGKILL)

    async def _await_epitaph(self, member: Member) -> None:
        try:
            member.epitaph = await self._fabric.call(member.reference, "epitaph")
        except (PeerDied, PeerUnreachable):
            return

    # --- going --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Let the actors stop, all at once; those that take too long are left to be killed."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        running = [member for member in self._members.values() if member.state == "running"]
        try:
            async with asyncio.timeout(self._grace_s):
                await all_done(_quietly(self._fabric.call, member.reference, "stop") for member in running)
        except TimeoutError:
            logger.warning("some actors did not stop within %g s and are killed", self._grace_s)

    async def dismiss(self) -> None:
        """End all processes."""
        await self._dismiss(list(self._members.values()))

    async def _dismiss(self, members: list[Member]) -> None:
        """End processes for good, and wait until those on this machine have gone."""
        for member in members:
            member.state = "gone"
            self._fabric.kill(member.reference)
        if not self._local:
            return
        for _ in range(100):
            if not any(map(_alive, members)):
                return
            await asyncio.sleep(0.02)
        for member in filter(_alive, members):
            os.kill(member.pid, signal.SIGKILL)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the stage is open."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task


async def _quietly(call: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """A call whose failure is somebody else's to notice; made here, so that a task cancelled early leaves none."""
    try:
        await call(*arguments)
    except (PeerDied, PeerUnreachable) as error:
        logger.debug("ignored: %s", error)


def _alive(member: Member) -> bool:
    """Whether a member's process is on this machine still."""
    if not member.pid:
        return False
    try:
        return psutil.Process(member.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
