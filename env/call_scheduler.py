"""Decides when calls run: in the order in which they came, as many at once as keeps the cores busy.

Invariants:
- each call that is submitted gets exactly one result, also when the scheduler is closed before its turn;
- calls run as many at once as there are cores, and more while cores are idle (programs that sleep), up to a bound:
  a slow call holds back no others, and programs that compute don't push each other over their wall-clock limits;
- a failure of the sandbox itself is tried again before it is given out; anything else is the caller's own;
- a waiting call costs itself and one future: no task, no process, no descriptor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Protocol

from env.idle_cores import IdleCores
from env.tool_call import ToolCall, ToolResult, sandbox_failure

logger = logging.getLogger(__name__)

RETRIES = 2
"""How often a call is run again after the sandbox failed."""
WORKERS_PER_CORE = 4
"""Calls that may run at once on each core if they leave it idle."""
LOOK_S = 0.05
"""How often the cores are looked at while calls wait."""
IDLE, BUSY = 0.5, 0.1
"""Idle cores above which more calls run at once, and below which fewer."""


class Runs(Protocol):
    """What runs one call: `env.interpreters.Interpreters`, or something in front of it."""

    async def run(self, call: ToolCall) -> ToolResult:
        """One result; a cancelled run ends its program."""
        ...


class CallScheduler:
    """Belongs to the event loop on which it is made.

    Example:
        scheduler = CallScheduler(interpreters, cores=2, workers=8)
        result = await scheduler.submit(ToolCall(id="1", code="print(6 * 7)"))
    """

    def __init__(self, runs: Runs, *, cores: int, workers: int) -> None:
        """`cores` calls run at once, up to `workers` while cores are idle; `runs` must bear that many.

        Raises `ValueError` for fewer than one core, or more than workers.
        """
        if not 1 <= cores <= workers:
            raise ValueError(f"cores must be from 1 to the number of workers, {workers}, not {cores}")
        self._runs, self._cores, self._workers = runs, cores, workers
        self._at_once = cores
        self._waiting: OrderedDict[asyncio.Future[ToolResult], ToolCall] = OrderedDict()
        self._working: dict[asyncio.Future[ToolResult], asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self.retried = 0
        """Runs that were made because the sandbox had failed one before."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._working)

    def submit(self, call: ToolCall) -> asyncio.Future[ToolResult]:
        """The call's result, to be awaited. Whoever cancels it, or gives it a result first, ends the call."""
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_result(sandbox_failure(call, "The environment is ending."))
            return answer
        answer.add_done_callback(self._settled)
        self._waiting[answer] = call
        self._fill()
        return answer

    async def run(self, call: ToolCall) -> ToolResult:
        """One result, when the call's turn has come; a cancelled run ends the call."""
        return await self.submit(call)

    async def close(self) -> None:
        """Answer what waits, and return when nothing runs any more. What runs is ended by whoever runs it."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        for answer, call in list(self._waiting.items()):
            if not answer.done():
                answer.set_result(sandbox_failure(call, "The environment is ending."))
        self._waiting.clear()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _settled(self, answer: asyncio.Future[ToolResult]) -> None:
        """A call is over, or nobody wants it any more."""
        self._waiting.pop(answer, None)
        work = self._working.get(answer)
        if work is not None:
            work.cancel()  # in vain where it is what gave the answer

    def _fill(self) -> None:
        """Start what may start now."""
        while self._waiting and len(self._working) < self._at_once:
            answer, call = self._waiting.popitem(last=False)
            if not answer.done():  # else its callback is about to come
                self._working[answer] = asyncio.get_running_loop().create_task(self._work(call, answer))
        if self._waiting and self._looking is None and self._cores < self._workers:
            self._looking = asyncio.get_running_loop().create_task(self._look_at_cores())

    async def _work(self, call: ToolCall, answer: asyncio.Future[ToolResult]) -> None:
        try:
            result = await self._run(call)
        except Exception as error:  # a fault of ours: whoever waits must learn of it
            logger.exception("call %s broke the sandbox", call.id)
            result = sandbox_failure(call, f"The sandbox broke: {error!r}")
        finally:
            del self._working[answer]
            if not self._closed:
                self._fill()
        if not answer.done():
            answer.set_result(result)

    async def _run(self, call: ToolCall) -> ToolResult:
        result = await self._run_once(call)
        for _ in range(RETRIES):
            if result.status != "sandbox_failure" or self._closed:
                break
            self.retried += 1
            result = await self._run_once(call)
        return result

    async def _run_once(self, call: ToolCall) -> ToolResult:
        result = await self._runs.run(call)
        if result.id != call.id:
            return sandbox_failure(call, f"The sandbox answered call {result.id!r} instead.")
        return result

    async def _look_at_cores(self) -> None:
        """While calls wait: run more at once if cores are idle, and fewer if none is."""
        idle_cores = IdleCores()
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            idle = idle_cores.since_last_look()
            if idle >= IDLE:
                self._at_once = min(self._workers, self._at_once + max(1, round(idle)))
                self._fill()
            elif idle < BUSY:
                self._at_once = max(self._cores, self._at_once - 1)
        self._looking = None
