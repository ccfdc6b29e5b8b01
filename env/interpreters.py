"""Runs tool calls: a bounded number at once, the rest waiting in the order in which they came.

    interpreters = Interpreters(Limits(), workers=2)
    result = await interpreters.run(ToolCall(id="1", code="print(6 * 7)"))
    await interpreters.close()

Invariants:
- `run` gives exactly one result for each call, whatever the code does and whatever fails here;
- a cancelled `run` ends its program, and its worker is free again only when nothing of it is left;
- nothing is left on the host after `close`; if this process is killed, its jails end by themselves, and what remains
  (empty cgroups) goes when the same user next starts a sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from env import preload
from env.descriptors import allow_descriptors
from env.image import Image
from env.isolation import Isolation, IsolationKind, Running, SandboxDescription
from env.jail_per_call import JailPerCall
from env.session_jails import JailRooms
from env.session_room import Rooms
from env.session_zygotes import ZygoteRooms
from env.sessions import SessionOptions, Sessions
from env.tool_call import JUPYTER_TOOL, TOOLS, Cell, Limits, ToolCall, ToolResult, sandbox_failure
from env.zygotes import RECYCLE_AFTER, Zygotes

logger = logging.getLogger(__name__)

SANDBOX = "nsjail"
"""What isolates, in every mode; for the books."""


class Interpreters:
    """A pool of sandboxed interpreters.

    Belongs to the event loop on which it is first used. What it does raises `RuntimeError` on another one, where nobody
    would hear of what jails say; but for `close`, once the first loop is closed, if there were no sessions.
    """

    def __init__(
        self,
        limits: Limits,
        workers: int,
        image: Image | None = None,
        run_id: str = "",
        isolation: IsolationKind = "zygote",
        preloaded: Sequence[str] = preload.LIBRARIES,
        recycle_after: int = RECYCLE_AFTER,
        sessions: SessionOptions | None = None,
    ) -> None:
        """`limits` are the most that a call gets, whatever it asks for; `workers` calls run at once. Cells of sessions
        run in processes that live on, bounded by `sessions`.

        `preloaded` libraries are in zygotes' memory before a call starts, in this order (see `env.preload`); a
        zygote's jail is replaced after `recycle_after` calls or sessions. Neither means anything to
        `isolation="jail-per-call"`.

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
        self._session_options = sessions or SessionOptions()
        self._opening: asyncio.Task[Sessions] | None = None
        self._tasks: dict[asyncio.Task[ToolResult], Running] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def isolation(self) -> Isolation:
        """What keeps calls apart; starts it if no call has yet. Raises `OSError` if it can't be started any more."""
        self._own_loop()
        if self._closed:
            raise OSError("these interpreters are closed")
        return await self._started()

    async def describe(self) -> SandboxDescription:
        """What keeps calls away from the host and from each other. Raises as `isolation` does."""
        weaknesses = (await self.isolation()).weaknesses
        opened = self._opened()
        live = 0 if opened is None else opened.live
        return SandboxDescription(SANDBOX, self.isolation_kind, weaknesses, live)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run one call when its turn comes. A program's failure is a result, never an exception.

        Raises `RuntimeError` after `close`, and `asyncio.CancelledError` if it is cancelled; then the program is ended.
        """
        loop = self._own_loop()
        if self._closed:
            raise RuntimeError("these interpreters are closed")
        if wrong := _what_is_wrong(call):
            return ToolResult(id=call.id, status="invalid_call", reason=wrong)
        running = Running()
        task = loop.create_task(self._serve(call, running))
        self._tasks[task] = running
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            running.abort()
            raise

    async def close(self) -> None:
        """End what runs, and give back everything. Calls that still wait or run get a `sandbox_failure`."""
        gone = self._loop is not None and self._loop.is_closed()
        if not gone or self._opening is not None:
            self._own_loop()
        self._closed = True
        for running in self._tasks.values():
            running.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None:
            opening, self._opening = self._opening, None
            (sessions,) = await asyncio.gather(opening, return_exceptions=True)
            if not isinstance(sessions, BaseException):
                await sessions.close()
        if self._starting is not None:
            starting, self._starting = self._starting, None
            (isolation,) = await asyncio.gather(starting, return_exceptions=True)
            if not isinstance(isolation, BaseException):
                await isolation.end_all()
                await asyncio.to_thread(isolation.close)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, which is these interpreters' own."""
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if self._loop is not running:
            raise RuntimeError(
                "these interpreters belong to another event loop, the one on which they were first used; "
                "use them there, or make others (each `asyncio.run` has a loop of its own)"
            )
        return running

    def _forget(self, task: asyncio.Task[ToolResult]) -> None:
        self._tasks.pop(task, None)

    async def _serve(self, call: ToolCall, running: Running) -> ToolResult:
        async with self._turn:
            if running.aborted:
                return sandbox_failure(call, "The call was given up before it started.")
            worker = self._free.pop()
            try:
                limits = _at_most(call.limits, self.limits)
                if call.tool == JUPYTER_TOOL:
                    return await (await self.sessions()).run(call, limits, running)
                return await (await self._started()).run(call, limits, worker, running)
            except OSError as error:
                logger.warning("call %s could not be run: %s", call.id, error)
                return sandbox_failure(call, f"The sandbox could not start the program: {error}")
            finally:
                self._free.append(worker)

    async def _started(self) -> Isolation:
        """The isolation, made by whoever comes first. A failed start is tried again by the next call."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(asyncio.to_thread(self._make_isolation))
        return await asyncio.shield(self._starting)

    async def sessions(self) -> Sessions:
        """The sessions of these interpreters. Raises `OSError` if there can't be any now."""
        self._own_loop()
        if self._closed:
            raise OSError("these interpreters are closed")
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.get_running_loop().create_task(self._open_sessions())
        return await asyncio.shield(self._opening)

    def open_sessions(self) -> tuple[str, ...]:
        """Names of the sessions that there are."""
        opened = self._opened()
        return opened.names() if opened is not None else ()

    async def adopt(self, session: str, cells: Sequence[Cell], last_call: str) -> None:
        """Make a session what these cells make of it; `last_call` is the id of the call that it answered last.

        Raises as `sessions` does.
        """
        limited = [cell.model_copy(update={"limits": _at_most(cell.limits, self.limits)}) for cell in cells]
        await (await self.sessions()).adopt(session, limited, last_call)

    def _opened(self) -> Sessions | None:
        opening = self._opening
        return opening.result() if opening is not None and opening.done() and opening.exception() is None else None

    async def _open_sessions(self) -> Sessions:
        rooms = await asyncio.to_thread(self._make_rooms)
        return Sessions(rooms, self._session_options, self._workers)

    def _make_rooms(self) -> Rooms:
        allow_descriptors()
        if self.isolation_kind == "jail-per-call":
            return JailRooms(self._image, self._run_id)
        return ZygoteRooms(self._image, self._run_id, self._preloaded, self._recycle_after)

    def _make_isolation(self) -> Isolation:
        allow_descriptors()
        if self.isolation_kind == "jail-per-call":
            return JailPerCall(self._image, self._workers, self._run_id)
        return Zygotes(self._image, self._workers, self._run_id, self._preloaded, self._recycle_after)


def _at_most(asked: Limits, most: Limits) -> Limits:
    return Limits(**{name: min(getattr(asked, name), getattr(most, name)) for name in Limits.model_fields})


def _what_is_wrong(call: ToolCall) -> str:
    """Why a call is none; empty if it is one."""
    if call.tool not in TOOLS:
        return f"There is no tool {call.tool!r}; the tools are {' and '.join(map(repr, TOOLS))}."
    if call.tool == JUPYTER_TOOL and not call.session:
        return f"A call of {JUPYTER_TOOL!r} needs a session."
    if call.tool == JUPYTER_TOOL and call.input:
        return f"{JUPYTER_TOOL!r} has no standard input."
    return ""
