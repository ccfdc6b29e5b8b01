"""The actor in front of the sandbox: takes tool calls, answers each with its result.

Calls that are asked for together arrive together (the mailbox packs them into frames) and are answered one by one, as
soon as each is done: there is no batch that its slowest call could hold back.

Invariants:
- a call id is run once: asked again while it runs or soon after, the same result is given;
- a failure of the sandbox itself is tried again here before it is answered; anything else is the caller's own and is
  answered as it is;
- calls start in the order in which they came: as many as there are cores at once, and more while cores are idle
  (programs that sleep), up to the number of workers;
- a waiting call costs its message and one future; no task, no process, no descriptor;
- a cancelled call is answered at once, never started if it waited, and its program is ended if it ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from pathlib import Path

from actors.messages import CallFinished, CancelCalls, DescribeEnvironment, EnvironmentStatus, RunCall
from actors.system.actor import Actor, handles
from env.idle_cores import IdleCores
from env.image import Image
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall, ToolResult

RETRIES = 2
"""How often a call is run again after the sandbox failed."""
RECENT_RESULTS = 4096
RECENT_CHARACTERS = 32 << 20
"""How many results, and how much of their text, are kept for those who ask again."""
WORKERS_PER_CORE = 4
"""Calls that may run at once on each core if they leave it idle."""
LOOK_S = 0.05
"""How often the cores are looked at while calls wait."""
IDLE, BUSY = 0.5, 0.1
"""Idle cores above which more calls run at once, and below which fewer."""


class RecentResults:
    """The last results, by call id; bounded in number and in size."""

    def __init__(self, count: int, characters: int) -> None:
        self._most, self._room = count, characters
        self._results: OrderedDict[str, ToolResult] = OrderedDict()

    def get(self, call_id: str) -> ToolResult | None:
        return self._results.get(call_id)

    def keep(self, result: ToolResult) -> None:
        earlier = self._results.pop(result.id, None)
        if earlier is not None:
            self._room += _size(earlier)
        self._results[result.id] = result
        self._room -= _size(result)
        while len(self._results) > self._most or (self._room < 0 and len(self._results) > 1):
            _, dropped = self._results.popitem(last=False)
            self._room += _size(dropped)


def _size(result: ToolResult) -> int:
    return len(result.stdout) + len(result.stderr) + len(result.reason)


class _Open:
    """A call that is not answered yet."""

    __slots__ = ("answer", "call", "work")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self.work: asyncio.Task[None] | None = None


class EnvironmentActor(Actor):
    """Runs tool calls in sandboxed interpreters on its own machine."""

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        cores: int | None = None,
        libraries: str | None = None,
        run_id: str = "",
    ) -> None:
        """`limits` are the most that a call gets.

        `cores` calls run at once (the machine's by default), and up to `workers` (four times as many) while cores idle.
        `libraries` is the folder that `python -m env.image` built, by default the project's own.
        """
        self._limits = limits or Limits()
        cores = cores or os.cpu_count() or 1
        self._workers = workers or WORKERS_PER_CORE * cores
        self._at_once = self._cores = min(cores, self._workers)
        self._image = Image(libraries=Path(libraries)) if libraries else Image()
        self._run_id = run_id
        self._interpreters: Interpreters | None = None
        self._open: dict[str, _Open] = {}
        self._waiting: OrderedDict[str, _Open] = OrderedDict()
        self._running = 0
        self._looking = False
        self._stopping = False
        self._calls_run = self._sandbox_failures = self._retried = self._cancelled = 0
        self._recent = RecentResults(RECENT_RESULTS, RECENT_CHARACTERS)

    async def start(self) -> None:
        """Raises `env.image.ImageIncomplete` if the sandbox is not built."""
        # Where engines share the cores, calls go first: their results are what makes the engines' batches large.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._interpreters = Interpreters(self._limits, self._workers, self._image, self._run_id)

    async def stop(self) -> None:
        self._stopping = True
        for waiting in list(self._waiting.values()):
            self._give_up(waiting, "The environment is ending.")
        if self._interpreters is not None:
            await self._interpreters.close()

    @handles(RunCall)
    async def on_run_call(self, request: RunCall) -> CallFinished:
        call = request.call
        result = self._recent.get(call.id)
        if result is None:
            opened = self._open.get(call.id) or self._take(call)
            result = await asyncio.shield(opened.answer)  # who gives up does not take the result from the others
        return CallFinished(result=result)

    @handles(CancelCalls)
    async def on_cancel(self, message: CancelCalls) -> None:
        for call_id in message.calls:
            opened = self._open.get(call_id)
            if opened is not None:
                self._cancelled += 1
                self._give_up(opened, "The call was cancelled.")
                if opened.work is not None:
                    opened.work.cancel()

    @handles(DescribeEnvironment)
    async def on_describe(self, _: DescribeEnvironment) -> EnvironmentStatus:
        assert self._interpreters is not None, "messages arrive after start()"
        return EnvironmentStatus(
            sandbox=await self._interpreters.sandbox(),
            calls_run=self._calls_run,
            sandbox_failures=self._sandbox_failures,
            retried=self._retried,
            cancelled=self._cancelled,
            waiting=len(self._waiting),
            running=self._running,
        )

    def _take(self, call: ToolCall) -> _Open:
        opened = self._open[call.id] = self._waiting[call.id] = _Open(call)
        if self._stopping:
            self._give_up(opened, "The environment is ending.")
        self._fill()
        return opened

    def _give_up(self, opened: _Open, reason: str) -> None:
        """Answer a call that will not be run to its end. The same id may be asked for anew after that."""
        del self._open[opened.call.id]
        self._waiting.pop(opened.call.id, None)
        opened.answer.set_result(_failure(opened.call, reason))

    def _fill(self) -> None:
        """Start what may start now."""
        while self._waiting and self._running < self._at_once:
            _, opened = self._waiting.popitem(last=False)
            self._running += 1
            opened.work = self.port.start_task(self._work(opened))
        if self._waiting and not self._looking and self._cores < self._workers:
            self._looking = True
            self.port.start_task(self._look_at_cores())

    async def _look_at_cores(self) -> None:
        """While calls wait: run more at once if cores are idle, and fewer if none is."""
        idle_cores = IdleCores()
        while self._waiting:
            await self.port.clock.sleep(LOOK_S)
            idle = idle_cores.since_last_look()
            if idle >= IDLE:
                self._at_once = min(self._workers, self._at_once + max(1, round(idle)))
                self._fill()
            elif idle < BUSY:
                self._at_once = max(self._cores, self._at_once - 1)
        self._looking = False

    async def _work(self, opened: _Open) -> None:
        try:
            result = await self._run(opened.call)
        finally:
            self._running -= 1
            self._fill()
        if self._open.get(opened.call.id) is not opened:
            return  # given up in the meantime, and answered
        del self._open[opened.call.id]
        self._calls_run += 1
        self._sandbox_failures += result.status == "sandbox_failure"
        if result.status != "sandbox_failure":  # the next one who asks may be luckier
            self._recent.keep(result)
        opened.answer.set_result(result)

    async def _run(self, call: ToolCall) -> ToolResult:
        assert self._interpreters is not None, "messages arrive after start()"
        result = await self._interpreters.run(call)
        for _ in range(RETRIES):
            if result.id != call.id:
                result = _failure(call, f"The sandbox answered call {result.id!r} instead.")
            if result.status != "sandbox_failure" or self._stopping:
                break
            self._retried += 1
            result = await self._interpreters.run(call)
        return result


def _failure(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(id=call.id, status="sandbox_failure", reason=reason)
