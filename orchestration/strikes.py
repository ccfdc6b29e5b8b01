"""Faults of a plan done to the processes of a real run on this machine, and what each of them hit.

Invariants:
- a fault hits a process that is there: it waits for one, and `Strike` holds what proves it (pid and start time before;
  gone, or stopped, after); one that is meant for messages waits for these, and happens again only after that;
- what is stopped is let go on again, also when the drill ends early;
- a recovery ends when the actor runs again (of a sandbox's process: when the environment has had a newer one, or needs
  none).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import psutil

from actors.system.actor import ActorRef, seed_for
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.links import PeerDied, PeerUnreachable
from actors.system.ray_stage import RayStage
from env.host_state import SandboxProcess, sandbox_processes

LOOK_S = 0.1
SANDBOX_LOOK_S = 0.5
"""Between two looks at an environment's processes: each look reads all processes of the machine."""
SETTLE_S = 1.0
"""After a recovery: what was lost is being asked for again."""
SANDBOX_RECOVERY_S = 30.0
"""An environment that has made no new process by then had no call for it."""
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
REAL_KINDS = (*SIGNALS, "delay", "drop", "double")

type Outcome = Literal["recovered", "not needed again", "not recovered"]


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
    """Whether the process was seen before, and gone (or stopped) after; of messages, whether they were hit."""
    confirmed_s: float | None = None
    """After the signal."""
    outcome: Outcome = "not recovered"
    recovery_s: float | None = None
    """From the signal until it was made good."""
    retried: dict[str, int] = field(default_factory=dict)
    """What was done again, by whom it may concern, from the signal until shortly after the recovery. Faults that
    overlap share these."""


class Striker:
    """Carries out a plan on a stage.

    Args:
        counters: what has been done again so far, by name; numbers only rise.
    """

    def __init__(
        self,
        stage: RayStage,
        plan: ActorFaultPlan,
        actors: list[str],
        seed: int,
        *,
        counters: Callable[[], dict[str, int]],
    ) -> None:
        """Raises `ValueError` for faults that are not of this stage, or fit nobody."""
        for fault in plan.faults:
            if fault.kind not in REAL_KINDS:
                kinds = ", ".join(REAL_KINDS)
                raise ValueError(f"{fault}: on Ray there are the kinds {kinds}; drill it with --virtual")
            if fault.kind not in SIGNALS and fault.process != "actor":
                raise ValueError(f"{fault}: only actors get messages; leave `process` out")
            fault.candidates(actors)
        self._stage, self._plan, self._actors, self._seed = stage, plan, actors, seed
        self._counters = counters
        self._began = asyncio.get_running_loop().time()
        self._stopped: dict[int, float] = {}
        self._looks: dict[int, tuple[float, list[SandboxProcess]]] = {}
        self._recoveries: list[asyncio.Task[None]] = []
        self.strikes: list[Strike] = []
        self.never = dict.fromkeys(map(str, plan.faults))
        """Faults that have not happened (yet)."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await asyncio.gather(*[self._carry_out(index, fault) for index, fault in enumerate(self._plan.faults)])
            await asyncio.Event().wait()
        finally:
            for pid, started in self._stopped.items():
                _signal(pid, started, signal.SIGCONT)

    async def settle(self, patience_s: float) -> None:
        """Wait until what was hit has recovered, at most so long."""
        if self._recoveries:
            await asyncio.wait(self._recoveries, timeout=patience_s)
        for task in self._recoveries:
            task.cancel()
        await asyncio.gather(*self._recoveries, return_exceptions=True)

    async def _carry_out(self, index: int, fault: ActorFault) -> None:
        draw, due = random.Random(seed_for(self._seed, f"fault-{index}")), fault.at
        while True:
            await asyncio.sleep(max(0.0, due - self._now()))
            strike = await self._strike(fault, draw)
            if fault.kind not in SIGNALS:
                await self._hit_messages(fault, strike)
            self.strikes.append(strike)
            self.never.pop(str(fault), None)
            if fault.kind in SIGNALS:
                self._recoveries.append(asyncio.ensure_future(self._follow(fault, strike, self._counters())))
            if fault.every is None:
                return
            due = max(due + fault.every, self._now())

    async def _strike(self, fault: ActorFault, draw: random.Random) -> Strike:
        """Wait for a target, and hit it."""
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
                pid = self._stage.pid(ref)
                if fault.process == "actor":
                    return psutil.Process(pid)
                found = self._sandbox(pid, fault.process)
                return psutil.Process(draw.choice(found)) if found else None
        return None

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
        while not self._is_back(strike):
            if strike.process != "actor" and self._now() - strike.at_s > SANDBOX_RECOVERY_S:
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
        ref = ActorRef(strike.actor)
        if strike.process == "actor":
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
