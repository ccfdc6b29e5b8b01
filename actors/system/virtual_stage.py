"""A stage in one process, on a virtual clock: the same actors, no processes, no waiting, the same run each time.

Invariants:
- all that happens follows from the parts, the seed and the fault plan (and `explore`): see `virtual_loop`;
- messages travel as `virtual_post` says;
- whoever waits for an actor that dies gets `ActorLost` after `Network.death_seen_s`, and its next incarnation is there
  after `Network.restart_s`;
- what a dead actor had open (files, locks) is closed by then, as the kernel closes what a process leaves: nothing holds
  its object any longer.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import math
import traceback
from typing import Any, Self

from actors.system.actor import Actor, ActorRef
from actors.system.actor_faults import ActorFaultPlan
from actors.system.stage import ActorStartFailed, Death, Part, check_open
from actors.system.trace import Trace
from actors.system.virtual_loop import NS, VirtualLoop
from actors.system.virtual_member import Member, Network
from actors.system.virtual_port import Deadlines, VirtualBlobs, VirtualPort
from actors.system.virtual_post import Post
from policies.restarts import RestartBudget

logger = logging.getLogger(__name__)

_DRIVER = "driver"


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
        self._blobs: dict[str, Any] = {}
        self._opened = self._closed = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise ValueError("open a virtual stage inside run_virtual()")
        self.loop = loop
        self.post = Post(
            loop,
            self._members,
            seed=self._seed,
            network=self.network,
            plan=self._plan,
            trace=self.trace,
            wire_every=self._wire_every,
        )
        self.deadlines = Deadlines(loop, self.post.note)
        driver = Member(Part(name=_DRIVER, actor=Actor), 0, RestartBudget(0, math.inf))
        driver.state = "running"
        self._members[_DRIVER] = driver
        self.port = driver.port = self._port(driver)
        for fault in self._plan.faults:
            if fault.kind == "kill":
                loop.call_at_ns(round(fault.at * NS), self._kill_planned, fault.actor)
        self._opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def actor(self, ref: ActorRef) -> Actor:
        """The object that plays a part now, for those who watch a run.

        Raises `LookupError` for an unknown actor, or one that is dead.
        """
        actor = self._member(ref).actor
        if actor is None:
            raise LookupError(f"{ref.name} is dead")
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
        """See `Stage.spawn`. Raises `ValueError` for names that are taken, or a stage that is not open."""
        check_open(self._opened, self._closed)
        for part in parts:
            known = self._members.get(part.name)
            if known is not None and known.state != "gone":
                raise ValueError(f"the name {part.name!r} is taken; names of actors are unique on a stage")
        members: list[Member] = []
        try:
            for part in parts:
                former = self._members.get(part.name)
                budget = RestartBudget(part.restarts, part.restart_window_s)
                members.append(self._recruit(part, 0 if former is None else former.incarnation + 1, budget))
            await asyncio.gather(*[self._start(member) for member in members])
        except BaseException:  # cancelled too: those that started must not stay behind
            for member in members:
                self._end(member)
                self.post.lose_all(member, "it was started with others that could not start")
            raise
        return [ActorRef(part.name) for part in parts]

    def _recruit(self, part: Part, incarnation: int, budget: RestartBudget) -> Member:
        member = Member(part, incarnation, budget)
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
        member.state, member.since_s = "running", self.loop.time()
        self.post.note("start", member.name, "", str(member.incarnation))
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
            self.post.note("fault", "", name, "kill")
            self.crash(member, "the fault plan killed it")

    def crash(self, member: Member, reason: str) -> None:
        """End an actor as a crash would."""
        if member.state == "gone" or self._closed:
            return
        was_running = member.state == "running"
        self._end(member)
        self.post.note("death", member.name, "", str(member.incarnation))
        seen = self.loop.now_ns() + round(self.network.death_seen_s * NS)
        if was_running or member.incarnation:
            self.loop.call_at_ns(seen, self._death_seen, member, reason, context=contextvars.Context())

    def _end(self, member: Member) -> None:
        if member.state == "running" and member.actor is not None:
            member.actor.vanish()
        member.state = "gone"
        member.actor = None
        member.held.clear()
        for task in self.loop.tasks_of(member.owner):
            task.cancel()
        for key in [key for key in self._blobs if key.startswith(member.owner + "/")]:
            del self._blobs[key]

    def _death_seen(self, member: Member, reason: str) -> None:
        self.post.lose_all(member, reason)
        now_s = self.loop.time()
        lived_s = 0.0 if member.since_s is None else now_s - member.since_s
        pause_s = member.budget.pause_after_death(now_s, lived_s)
        self.deaths.append(Death(member.name, member.incarnation, reason, pause_s is not None))
        if pause_s is not None and not self._closed:
            self.loop.create_task(self._restart(member, pause_s))

    async def _restart(self, member: Member, pause_s: float) -> None:
        await asyncio.sleep(self.network.restart_s + pause_s)
        if self._closed:
            return
        successor = self._recruit(member.part, member.incarnation + 1, member.budget)
        try:
            await self._start(successor)
        except ActorStartFailed as error:
            self._end(successor)
            self._death_seen(successor, str(error))

    async def close(self) -> None:
        """See `Stage.close`. Idempotent."""
        if self._closed or not self._opened:
            self._closed = True
            return
        self._closed = self.post.closed = True
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
        self._members[_DRIVER].state = "gone"  # who asks now is answered that everybody is gone
        for member in self._members.values():
            member.actor = None  # what it holds is freed now, not when the collector finds out that nobody needs it

    def _port(self, member: Member) -> VirtualPort:
        return VirtualPort(self, member, seed=self._seed, blobs=VirtualBlobs(self._blobs, member.owner))
