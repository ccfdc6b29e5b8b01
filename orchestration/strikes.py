"""Faults of a plan done to the processes of a real run on this machine, and what each of them hit.

Invariants:
- a fault hits a process that is there: it waits for one, and `Strike` holds what proves it (pid and start time before;
  gone, or stopped, after); one that is meant for messages waits for these, one that takes memory until something asks
  for it, and they happen again only after that; what lasts happens again only when it is over;
- what is stopped is let go on again, what is taken is given back, also when the drill ends early;
- a recovery ends when the actor runs again (of a sandbox's process: when the environment has had a newer one, or needs
  none).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from actors.system.actor import ActorRef, seed_for
from actors.system.actor_faults import LASTING_KINDS, MESSAGE_KINDS, SANDBOX_ROLES, ActorFault, ActorFaultPlan
from actors.system.links import PeerDied, PeerUnreachable
from actors.system.ray_stage import RayStage
from env import cgroup_hierarchy
from env.host_state import SandboxProcess, sandbox_processes
from orchestration.pressures import FullDisk, Pressure, Slowness, Squeeze, own_file_system

logger = logging.getLogger(__name__)

LOOK_S = 0.1
SANDBOX_LOOK_S = 0.5
"""Between two looks at an environment's processes: each look reads all processes of the machine."""
SETTLE_S = 1.0
"""After a recovery: what was lost is being asked for again."""
SANDBOX_RECOVERY_S = 30.0
"""An environment that has made no new process by then had no call for it."""
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}

type Outcome = Literal["recovered", "not needed again", "until the end", "not recovered"]
"""`until the end`: it held when the run came to its end, or ended early."""


@dataclass(slots=True)
class Strike:
    """One fault that was done."""

    fault: str
    kind: str
    actor: str
    process: str
    at_s: float
    """Since the actors had started; so are the other times."""
    pid: int = 0
    process_started: float = 0.0
    """Seconds since the epoch: with the pid, it names the process."""
    hit_at: float = 0.0
    """Seconds since the epoch."""
    incarnation: int = 0
    """Of the actor, when it was hit."""
    confirmed: bool = False
    """Whether the process was seen before, and gone (or stopped) after; of messages, whether they were hit; of memory,
    whether it was refused and something was killed for it; of a disk, whether it was full."""
    confirmed_s: float | None = None
    """After the signal."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of what held for some time (`orchestration.pressures`)."""
    outcome: Outcome = "not recovered"
    recovery_s: float | None = None
    """From the signal until it was made good."""
    retried: dict[str, int] = field(default_factory=dict)
    """What was done again, by whom it may concern, from the signal until shortly after the recovery. Faults that
    overlap share these."""

    @property
    def whom(self) -> str:
        """`jail of environment-1`, `learner`, `run folder`."""
        return self.actor if self.process == "actor" else f"{self.process} of {self.actor}".removesuffix(" of ")


class Striker:
    """Carries out a plan on a stage.

    Args:
        folder: the run's.
        counters: what has been done again so far, by name; numbers only rise.
    """

    def __init__(
        self,
        stage: RayStage,
        plan: ActorFaultPlan,
        actors: list[str],
        seed: int,
        *,
        folder: Path,
        counters: Callable[[], dict[str, int]],
    ) -> None:
        """Raises `ValueError` as `check_plan` does."""
        check_plan(plan, actors, folder)
        self._folder = folder
        self._stage, self._plan, self._actors, self._seed = stage, plan, actors, seed
        self._counters = counters
        self._began = asyncio.get_running_loop().time()
        self._stopped: dict[int, float] = {}
        self._looks: dict[int, tuple[float, list[SandboxProcess]]] = {}
        self._recoveries: list[asyncio.Task[None]] = []
        self._pressing: set[asyncio.Task[None]] = set()
        self.strikes: list[Strike] = []
        self.never = dict.fromkeys(map(str, plan.faults))
        """Faults that have not happened (yet)."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await asyncio.gather(*[self._carry_out(index, fault) for index, fault in enumerate(self._plan.faults)])
            await asyncio.Event().wait()
        finally:
            for task in self._pressing:
                task.cancel()
            await asyncio.gather(*self._pressing, return_exceptions=True)
            for pid, started in self._stopped.items():
                _signal(pid, started, signal.SIGCONT)

    async def settle(self, patience_s: float) -> None:
        """Wait until what was hit has recovered, at most so long."""
        if self._recoveries:
            await asyncio.wait(self._recoveries, timeout=patience_s)
        for task in self._recoveries:
            task.cancel()
        for outcome in await asyncio.gather(*self._recoveries, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("a fault could not be followed", exc_info=outcome)

    async def _carry_out(self, index: int, fault: ActorFault) -> None:
        draw, due = random.Random(seed_for(self._seed, f"fault-{index}")), fault.at
        while True:
            await asyncio.sleep(max(0.0, due - self._now()))
            strike = await self._strike(fault, draw)
            follow = None
            if fault.kind in SIGNALS:
                follow = self._follow(fault, strike, self._counters())
            elif fault.kind in MESSAGE_KINDS:
                await self._hit_messages(fault, strike)
            else:
                follow = self._bear(fault, strike, await self._press(fault, strike), self._counters())
            self.strikes.append(strike)
            self.never.pop(str(fault), None)
            if follow is not None:
                self._recoveries.append(asyncio.ensure_future(follow))
            if fault.every is None:
                return
            due = max(due + fault.every, self._now() + (fault.seconds if fault.kind in LASTING_KINDS else 0.0))

    async def _strike(self, fault: ActorFault, draw: random.Random) -> Strike:
        """Wait for a target, and hit it if a signal does."""
        if fault.kind == "fill":
            return Strike(str(fault), fault.kind, "", "run folder", self._now(), hit_at=time.time())
        while True:
            name = draw.choice(fault.candidates(self._actors))
            process = self._find(fault, name, draw)
            if process is not None:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    strike = Strike(str(fault), fault.kind, name, fault.process, self._now(), process.pid)
                    strike.process_started = process.create_time()
                    strike.hit_at = time.time()
                    strike.incarnation = self._stage.incarnation(ActorRef(name))
                    if fault.kind in SIGNALS:
                        os.kill(process.pid, SIGNALS[fault.kind])
                    if fault.kind == "freeze":
                        self._stopped[process.pid] = strike.process_started
                    return strike
            await asyncio.sleep(LOOK_S)

    def _find(self, fault: ActorFault, name: str, draw: random.Random) -> psutil.Process | None:
        ref = ActorRef(name)
        with contextlib.suppress(LookupError, psutil.NoSuchProcess):
            if self._stage.runs(ref):
                process = psutil.Process(self._stage.pid(ref))
                if fault.process in SANDBOX_ROLES:
                    found = self._sandbox(process.pid, fault.process)
                    return psutil.Process(draw.choice(found)) if found else None
                if fault.kind == "squeeze" and not self._sandbox(process.pid, "jail"):
                    return None  # it has run nothing yet
                if fault.process == "raylet":  # not ours: this process, and with it the run, would end with it
                    away = self._stage.node(ref) != self._stage.own_node
                    return next((each for each in process.parents() if away and each.name() == "raylet"), None)
                return process
        return None

    async def _press(self, fault: ActorFault, strike: Strike) -> asyncio.Task[None]:
        """Begin with what holds for some time, and wait until it is felt, or its target has gone."""
        pressure = self._pressure(fault, strike)
        task = asyncio.ensure_future(pressure.keep_up())
        self._pressing.add(task)
        task.add_done_callback(self._pressing.discard)
        await _until(lambda: pressure.felt or task.done(), LOOK_S / 2)
        if task.done():
            task.result()  # it may have failed
        strike.confirmed, strike.figures = pressure.felt, pressure.figures
        strike.confirmed_s = self._now() - strike.at_s
        return task

    def _pressure(self, fault: ActorFault, strike: Strike) -> Pressure:
        if fault.kind == "fill":
            return FullDisk(self._folder)
        if fault.kind == "squeeze":
            return Squeeze(strike.pid)
        return Slowness(self._slow(fault, strike), fault.times, self._stopped)

    def _slow(self, fault: ActorFault, strike: Strike) -> Callable[[], list[int]]:
        """Who is to be slow now: the process that was hit, or all that play on its node, whoever plays them now."""
        if fault.process == "actor":
            return lambda: [strike.pid] if _status(strike.pid, strike.process_started) is not None else []
        node = self._stage.node(ActorRef(strike.actor))
        refs = [ref for ref in map(ActorRef, self._actors) if self._stage.node(ref) == node]
        return lambda: [self._stage.pid(ref) for ref in refs if self._stage.runs(ref)]

    # --- recovery ---------------------------------------------------------------------------------

    async def _hit_messages(self, fault: ActorFault, strike: Strike) -> None:
        """Wait until an actor has got as many frames as are to be hit: it may be one that is told little."""
        assert fault.kind in ("delay", "drop", "double"), fault
        with contextlib.suppress(PeerDied, PeerUnreachable):  # another fault killed it: no frames are left to hit
            await self._stage.disturb(ActorRef(strike.actor), fault.kind, fault.messages, fault.seconds)
            strike.confirmed, strike.confirmed_s = True, self._now() - strike.at_s
        strike.outcome, strike.recovery_s = "recovered", self._now() - strike.at_s

    async def _follow(self, fault: ActorFault, strike: Strike, before: dict[str, int]) -> None:
        """See that it hit, let go what was stopped, wait for the recovery, and note what it took."""
        await _until(lambda: self._hit(strike), LOOK_S / 10)
        strike.confirmed, strike.confirmed_s = True, self._now() - strike.at_s
        if fault.kind == "freeze":
            await self._thaw(fault, strike)
        await self._note_recovery(strike, before)

    async def _bear(
        self, fault: ActorFault, strike: Strike, pressing: asyncio.Task[None], before: dict[str, int]
    ) -> None:
        """Let a pressure go when its time is over, wait for the recovery, and note what it took."""
        strike.outcome = "until the end"  # unless its time is over before
        await asyncio.wait([pressing], timeout=fault.seconds)
        if pressing.cancelled():
            return
        strike.outcome = "not recovered"
        if pressing.done():
            pressing.result()  # it may have failed
        pressing.cancel()
        await asyncio.gather(pressing, return_exceptions=True)
        await self._note_recovery(strike, before)

    async def _note_recovery(self, strike: Strike, before: dict[str, int]) -> None:
        while not self._is_back(strike):
            if strike.process in SANDBOX_ROLES and self._now() - strike.at_s > SANDBOX_RECOVERY_S:
                strike.outcome = "not needed again"
                return
            await asyncio.sleep(LOOK_S)
        strike.outcome, strike.recovery_s = "recovered", self._now() - strike.at_s
        await asyncio.sleep(SETTLE_S)
        more = {name: count - before.get(name, 0) for name, count in self._counters().items()}
        strike.retried = {name: count for name, count in more.items() if count}

    def _hit(self, strike: Strike) -> bool:
        status = _status(strike.pid, strike.process_started)
        return status is None or (strike.kind == "freeze" and status == psutil.STATUS_STOPPED)

    async def _thaw(self, fault: ActorFault, strike: Strike) -> None:
        await asyncio.sleep(fault.seconds)
        _signal(strike.pid, strike.process_started, signal.SIGCONT)
        self._stopped.pop(strike.pid, None)

    def _is_back(self, strike: Strike) -> bool:
        if strike.kind == "fill":
            return True  # its room was given back
        ref = ActorRef(strike.actor)
        if strike.process not in SANDBOX_ROLES:
            same = _status(strike.pid, strike.process_started) is not None
            return self._stage.runs(ref) and (same or self._stage.incarnation(ref) > strike.incarnation)
        if not self._stage.runs(ref):
            return False
        found = self._sandbox(self._stage.pid(ref), strike.process)
        return any(_started(pid) > strike.hit_at and pid != strike.pid for pid in found)

    def _sandbox(self, environment: int, role: str) -> list[int]:
        """The processes of a role below an environment's."""
        looked_s, found = self._looks.get(environment, (-SANDBOX_LOOK_S, []))
        if self._now() - looked_s >= SANDBOX_LOOK_S:
            found = sandbox_processes(environment)
            self._looks[environment] = self._now(), found
        return [each.pid for each in found if each.role == role]

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began


def check_plan(plan: ActorFaultPlan, actors: list[str], folder: Path) -> None:
    """Raises `ValueError` for faults that can't be done for real, here, to these actors or to a run in this folder."""
    for fault in plan.faults:
        if fault.kind == "lose":
            raise ValueError(f"{fault}: on Ray no message is lost for good; use drop, or drill it with --virtual")
        if fault.kind == "fill":
            own_file_system(folder)
            continue
        fault.candidates(actors)
        if fault.kind == "squeeze" and cgroup_hierarchy.find_hierarchy() is None:
            raise ValueError(
                f"{fault}: this host lets us make no cgroups, so no sandbox's memory can be taken; leave it out"
            )


async def _until(condition: Callable[[], bool], look_s: float) -> None:
    while not condition():  # noqa: ASYNC110  (of other processes the kernel tells only when asked)
        await asyncio.sleep(look_s)


def _started(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _status(pid: int, started: float) -> str | None:
    """What the kernel says of a process; None if it has ended."""
    try:
        process = psutil.Process(pid)
        status = process.status()
        return None if process.create_time() != started or status == psutil.STATUS_ZOMBIE else status
    except psutil.NoSuchProcess:
        return None


def _signal(pid: int, started: float, number: signal.Signals) -> None:
    if _status(pid, started) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
