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
import logging
from collections.abc import Sequence

from env import preload
from env.image import Image
from env.isolation import Isolation, IsolationKind, Running, SandboxDescription
from env.jail_per_call import JailPerCall
from env.tool_call import PYTHON_TOOL, Limits, ToolCall, ToolResult
from env.zygotes import RECYCLE_AFTER, Zygotes

logger = logging.getLogger(__name__)

SANDBOX = "nsjail"
"""What isolates, in every mode; for the books."""


class Interpreters:
    """A pool of sandboxed interpreters. Belongs to the event loop on which `run` is first called."""

    def __init__(
        self,
        limits: Limits,
        workers: int,
        image: Image | None = None,
        run_id: str = "",
        isolation: IsolationKind = "zygote",
        preloaded: Sequence[str] = preload.LIBRARIES,
        recycle_after: int = RECYCLE_AFTER,
    ) -> None:
        """`limits` are the most that a call gets, whatever it asks for; `workers` calls run at once.

        `preloaded` libraries are in zygotes' memory before a call starts, in this order (see `env.preload`); a
        zygote's jail is replaced after `recycle_after` calls. Neither means anything to `isolation="jail-per-call"`.

        Raises `ValueError` for fewer than one worker or an unknown isolation, and `env.image.ImageIncomplete` if the
        sandbox is not built.
        """
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if isolation not in ("zygote", "jail-per-call"):
            raise ValueError(f"isolation must be 'zygote' or 'jail-per-call', not {isolation!r}")
        if recycle_after < 1:
            raise ValueError(f"recycle_after must be at least 1, not {recycle_after}")
        self.isolation_kind: IsolationKind = isolation
        self._preloaded, self._recycle_after = tuple(preloaded), recycle_after
        self.limits = limits
        self._image = image or Image()
        self._image.check()
        self._run_id = run_id
        self._workers = workers
        self._free = list(range(workers))
        self._turn = asyncio.Semaphore(workers)
        self._starting: asyncio.Task[Isolation] | None = None
        self._tasks: dict[asyncio.Task[ToolResult], Running] = {}
        self._closed = False

    async def isolation(self) -> Isolation:
        """What keeps calls apart; starts it if no call has yet. Raises `OSError` if it can't be started."""
        return await self._started()

    async def describe(self) -> SandboxDescription:
        """What keeps calls away from the host and from each other. Raises as `isolation` does."""
        return SandboxDescription(SANDBOX, self.isolation_kind, (await self.isolation()).weaknesses)

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
                await isolation.end_all()
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
            self._starting = asyncio.get_running_loop().create_task(asyncio.to_thread(self._make_isolation))
        return await asyncio.shield(self._starting)

    def _make_isolation(self) -> Isolation:
        if self.isolation_kind == "jail-per-call":
            return JailPerCall(self._image, self._workers, self._run_id)
        return Zygotes(self._image, self._workers, self._run_id, self._preloaded, self._recycle_after)


def _at_most(asked: Limits, most: Limits) -> Limits:
    return Limits(**{name: min(getattr(asked, name), getattr(most, name)) for name in Limits.model_fields})


def _failure(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(id=call.id, status="sandbox_failure", reason=reason)
