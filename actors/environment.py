"""The actor in front of the sandbox: takes tool calls, answers each with its result.

Invariants:
- a call id is run once: asked again while it runs or soon after, the same result is given;
- a failure of the sandbox itself is tried again here before it is answered; anything else is the caller's own and is
  answered as it is;
- waiting calls cost a small object each; how many run at once is bounded by the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from pathlib import Path

from actors.messages import CallFinished, DescribeEnvironment, EnvironmentStatus, RunCall
from actors.simulated_interpreters import SimulatedInterpreters
from actors.system.actor import Actor, handles
from env.image import Image
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall, ToolResult
from policies.workloads import Workload

RETRIES = 2
"""How often a call is run again after the sandbox failed."""
RECENT_RESULTS = 4096
RECENT_CHARACTERS = 32 << 20
"""How many results, and how much of their text, are kept for those who ask again."""


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


class EnvironmentActor(Actor):
    """Runs tool calls in sandboxed interpreters on its own machine."""

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        libraries: str | None = None,
        run_id: str = "",
        workload: Workload | None = None,
    ) -> None:
        """`limits` are the most that a call gets; `workers` defaults to the machine's cores.

        `libraries` is the folder that `python -m env.image` built, by default the project's own. With a `workload`
        nothing is run: it says what comes of each call, and how long that takes.
        """
        self._limits = limits or Limits()
        self._workers = workers or os.cpu_count() or 1
        self._image = Image(libraries=Path(libraries)) if libraries else Image()
        self._run_id = run_id
        self._workload = workload
        self._interpreters: Interpreters | SimulatedInterpreters | None = None
        self._running: dict[str, asyncio.Task[ToolResult]] = {}
        self._stopping = False
        self._calls_run = self._sandbox_failures = 0
        self._recent = RecentResults(RECENT_RESULTS, RECENT_CHARACTERS)

    async def start(self) -> None:
        """Raises `env.image.ImageIncomplete` if the sandbox is not built."""
        if self._workload is not None:
            self._interpreters = SimulatedInterpreters(self._workload, self._workers, self.port.clock)
            return
        # Where engines share the cores, calls go first: their results are what makes the engines' batches large.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._interpreters = Interpreters(self._limits, self._workers, self._image, self._run_id)

    async def stop(self) -> None:
        self._stopping = True
        if self._interpreters is not None:
            await self._interpreters.close()

    @handles(RunCall)
    async def on_run_call(self, request: RunCall) -> CallFinished:
        call = request.call
        result = self._recent.get(call.id)
        if result is None:
            running = self._running.get(call.id)
            if running is None:
                running = self._running[call.id] = self.port.start_task(self._run(call))
            result = await asyncio.shield(running)  # one who gives up does not take the result from the others
        return CallFinished(result=result)

    @handles(DescribeEnvironment)
    async def on_describe(self, _: DescribeEnvironment) -> EnvironmentStatus:
        assert self._interpreters is not None, "messages arrive after start()"
        return EnvironmentStatus(
            sandbox=await self._interpreters.sandbox(),
            calls_run=self._calls_run,
            sandbox_failures=self._sandbox_failures,
        )

    async def _run(self, call: ToolCall) -> ToolResult:
        assert self._interpreters is not None, "messages arrive after start()"
        try:
            result = await self._interpreters.run(call)
            for _ in range(RETRIES):
                if result.status != "sandbox_failure" or self._stopping:
                    break
                result = await self._interpreters.run(call)
            self._calls_run += 1
            self._sandbox_failures += result.status == "sandbox_failure"
            if result.status != "sandbox_failure":  # the next one who asks may be luckier
                self._recent.keep(result)
            return result
        finally:
            del self._running[call.id]
