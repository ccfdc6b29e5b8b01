"""Faults on purpose: plans of what goes wrong in a sandbox, and interpreters that make it happen to real jails.

For whoever tests what runs code here, or an environment of their own (`env.fault_fixtures` has pytest fixtures):

    plan = FaultPlan(faults=(Fault(kind="crash", call="a"), Fault(kind="late", call="b", late_s=2.0)))
    environment = FaultyEnvironment(plan)
    result = await environment.run(ToolCall(id="a", code="print(1)"))   # the first run crashed; this is the second's
    await environment.close()

What the caller sees of each kind: docs/code-environment.md.

Invariants:
- a plan is data: it can be printed, stored, and made again from its seed;
- faults are real: processes are killed and stopped, memory is exhausted, jails fail to start, programs run twice;
  only `garbled` and `late` are done to the answer on its way;
- a fault hits the call that the plan names and no other, however many run beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import random
import secrets
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import psutil
from pydantic import BaseModel, ConfigDict, Field

from env.call_scheduler import CallScheduler, Runs
from env.host_state import sandbox_processes
from env.image import Image
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall, ToolResult

FaultKind = Literal[
    "crash",  # the jail is killed while the program runs
    "hang",  # every process of the jail is stopped while the program runs, and stays so
    "out_of_memory",  # the program is one that takes more memory than it may
    "garbled",  # the answer is not one to this call
    "late",  # the answer comes after a pause
    "doubled",  # the call is run twice, as after a message sent again; the first answer counts
    "no_start",  # the jail can't start its interpreter
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


class Fault(BaseModel):
    """One fault: what, to whom, when.

    Raises `pydantic.ValidationError` for unknown fields or kinds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    call: str = "*"
    """Id of the call that it hits; `*` and `?` match any, as in file names."""
    run: Annotated[int, Field(ge=0)] = 0
    """Which run of that call: 0 is the first, 1 the one after a failure of the sandbox, and so on."""
    late_s: Annotated[float, Field(ge=0)] = 1.0
    """Pause of `late`, in seconds."""


class FaultPlan(BaseModel):
    """Faults to come. The first that matches a run is the one that happens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: tuple[Fault, ...] = ()

    @classmethod
    def drawn(
        cls, seed: int, calls: Sequence[str], share: float, kinds: Sequence[FaultKind] = KINDS, late_s: float = 1.0
    ) -> FaultPlan:
        """A plan that hits each call's first run with probability `share`, with a kind drawn evenly from `kinds`.

        The same arguments give the same plan. Raises `ValueError` for a share that is no probability.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, not {share}")
        draw = random.Random(seed)
        hit = [call for call in calls if draw.random() < share]
        return cls(faults=tuple(Fault(kind=draw.choice(kinds), call=call, late_s=late_s) for call in hit))

    def fault_for(self, call: str, run: int) -> Fault | None:
        """What happens to a run of a call."""
        for fault in self.faults:
            if fault.run == run and fnmatch.fnmatchcase(call, fault.call):
                return fault
        return None


class Hit(NamedTuple):
    """A fault that happened."""

    call: str
    run: int
    kind: FaultKind


_SLEEPS = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'{}')\ntime.sleep(3600)"
"""Gives itself a name (PR_SET_NAME), by which its process is found, and waits."""
_EATS_MEMORY = "held = []\nwhile True:\n    held.append(b'x' * (1 << 20))"
_LOOK_S = 0.005


class FaultyInterpreters:
    """Interpreters that fail as a plan says. Does not close what it is given."""

    def __init__(self, interpreters: Runs, plan: FaultPlan) -> None:
        self._interpreters, self._plan = interpreters, plan
        self._runs: Counter[str] = Counter()
        self.hits: list[Hit] = []
        """What has happened so far."""

    async def run(self, call: ToolCall) -> ToolResult:
        """As `Interpreters.run`, but for what the plan has in store for this run."""
        run = self._runs[call.id]
        self._runs[call.id] += 1
        fault = self._plan.fault_for(call.id, run)
        if fault is None:
            return await self._interpreters.run(call)
        self.hits.append(Hit(call.id, run, fault.kind))
        match fault.kind:
            case "crash":
                return await self._struck(call, signal.SIGKILL)
            case "hang":
                return await self._struck(call, signal.SIGSTOP)
        return await self._altered(call, fault)

    async def _altered(self, call: ToolCall, fault: Fault) -> ToolResult:
        match fault.kind:
            case "out_of_memory":
                return await self._interpreters.run(call.model_copy(update={"code": _EATS_MEMORY}))
            case "no_start":
                return await _run_without_interpreter(call)
            case "doubled":
                first, _ = await asyncio.gather(self._interpreters.run(call), self._interpreters.run(call))
                return first
        result = await self._interpreters.run(call)
        if fault.kind == "late":
            await asyncio.sleep(fault.late_s)
            return result
        assert fault.kind == "garbled", fault
        return result.model_copy(update={"id": call.id[::-1] + "\ufffd", "stdout": "\ufffd" * 8, "status": "success"})

    async def _struck(self, call: ToolCall, number: signal.Signals) -> ToolResult:
        """Run a program that waits for it, and send a signal to every process of its jail."""
        name = f"gr-{secrets.token_hex(6)}"
        before = {process.pid for process in sandbox_processes()}
        running = asyncio.ensure_future(self._interpreters.run(call.model_copy(update={"code": _SLEEPS.format(name)})))
        try:
            while not running.done():
                jail = [pid for pid in _jail_of(name) if pid not in before]  # those before serve other calls too
                for pid in jail:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                if jail:
                    break
                await asyncio.sleep(_LOOK_S)
            return await running
        finally:
            running.cancel()


def _jail_of(name: str) -> list[int]:
    """The processes of the jail in which the program that goes by a name runs; empty if it does not run (yet).

    What could report the program's end comes before the program: what is in its PID namespace, and what is above it.
    """
    found = {process.pid: process.role for process in sandbox_processes()}
    for pid, role in found.items():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if role == "program" and Path(f"/proc/{pid}/comm").read_text().strip() == name:
                inits = [each for each, kind in found.items() if kind == "init" and _namespace(each) == _namespace(pid)]
                above = [parent.pid for parent in psutil.Process(pid).parents() if parent.pid in found]
                return list(dict.fromkeys([*inits, *above, pid]))
    return []


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


async def _run_without_interpreter(call: ToolCall) -> ToolResult:
    """What a jail does whose interpreter is an empty file."""
    with tempfile.TemporaryDirectory(prefix="greenroom-no-start-") as folder:
        image = Image(prefix=Path(folder), libraries=None)
        for path, mode in ((image.executable, 0o755), (image.standard_library / "os.py", 0o644)):
            path.parent.mkdir(parents=True)
            path.touch(mode)
        interpreters = Interpreters(call.limits, workers=1, image=image, run_id="no-start")
        try:
            return await interpreters.run(call)
        finally:
            await interpreters.close()


class FaultyEnvironment:
    """Sandbox and scheduler on this machine, as an environment actor has them, with faults. Made on a running loop."""

    def __init__(self, plan: FaultPlan, limits: Limits | None = None, *, cores: int = 2, workers: int = 4) -> None:
        """`limits` are the most that a call gets. Raises `env.image.ImageIncomplete` if the sandbox is not built."""
        self._interpreters = Interpreters(limits or Limits(), workers, run_id="faults")
        self._faulty = FaultyInterpreters(self._interpreters, plan)
        self._scheduler = CallScheduler(self._faulty, cores=cores, workers=workers)

    @property
    def hits(self) -> list[Hit]:
        """The faults that happened so far."""
        return self._faulty.hits

    @property
    def retried(self) -> int:
        """Runs that were made because the sandbox had failed one before."""
        return self._scheduler.retried

    async def run(self, call: ToolCall) -> ToolResult:
        """The one result of a call."""
        return await self._scheduler.run(call)

    async def close(self) -> None:
        await asyncio.gather(self._scheduler.close(), self._interpreters.close())


class SandboxKiller:
    """Kills jails, zygotes and inits below some processes, at random, for as long as it runs.

    Example:
        killer = SandboxKiller(lambda: [pid], random.Random(0), interval_s=0.5)
        task = asyncio.create_task(killer.run())
        ...
        task.cancel()
    """

    def __init__(self, roots: Callable[[], Sequence[int]], draw: random.Random, interval_s: float) -> None:
        """`roots` tells the processes that hold interpreters now; one victim every `interval_s` seconds."""
        self._roots, self._draw, self._interval_s = roots, draw, interval_s
        self.killed: Counter[str] = Counter()
        """How many of each role."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # between two calls there may be nobody
            pause = self._interval_s if self._kill_one() else _LOOK_S
            await asyncio.sleep(pause)

    def _kill_one(self) -> bool:
        """Kill one of those that are there; returns whether there was one."""
        found = [each for root in self._roots() for each in sandbox_processes(root) if each.role != "program"]
        if not found:
            return False
        victim = self._draw.choice(found)
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed[victim.role] += 1
        return True
