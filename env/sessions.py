"""Sessions: cells that share names, as in a notebook, each session with a live process of its own.

    sessions = Sessions(rooms, SessionOptions(), workers=2)
    result = await sessions.run(ToolCall(id="1", tool=JUPYTER_TOOL, session="a", code="x = 6"), Limits(), Running())
    result = await sessions.run(ToolCall(id="2", tool=JUPYTER_TOOL, session="a", code="x * 7"), Limits(), Running())
    await sessions.end("a")

Invariants:
- the cells of a session run one after the other, in the order in which they came;
- live processes are bounded in number and in memory: those that have waited longest are ended first, and a session
  whose process is gone gets another one, which runs its cells again; the result says so (`restarted`, `replayed`);
- a cell that ended its process is not run again, whatever it did before that is lost;
- after `end` or `close` nothing of a session is left, nor after a cell that was given up.

What running cells again can't bring back: the time, random numbers without a seed, what other processes did meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from env.isolation import Running
from env.session_books import Begin, SessionBooks
from env.session_process import SessionProcess
from env.session_room import Rooms
from env.tool_call import Cell, Limits, ToolCall, ToolResult, sandbox_failure
from env.verdict import verdict

logger = logging.getLogger(__name__)

REPLAYS_WITHIN_S = 60.0
"""Seconds for running a session's cells again; what is not done by then stays undone."""
_SPARE_SHARE = 0.05
"""Of the machine's memory: where less is available, waiting sessions are ended."""


class SessionOptions(BaseModel):
    """Bounds on the sessions of one sandbox, all together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    most_live: Annotated[int, Field(ge=1, le=1000)] = 64
    """Sessions that have a process; more can be open. Never fewer than calls may run at once."""
    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """What waiting and running sessions may hold together; None: a quarter of the machine's memory."""
    idle_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """A process that has waited so long is ended."""


class _State:
    """What there is of one session here, beside its books."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.process: SessionProcess | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.last_call = ""
        """Id of the last call that was answered, by whatever but a failure of the sandbox."""
        self.over = False

    def take_process(self) -> SessionProcess | None:
        """The process, which is now the taker's to end."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None
        process, self.process = self.process, None
        return process


class Sessions:
    """Belongs to one event loop. Closes what it is given."""

    def __init__(self, rooms: Rooms, options: SessionOptions, workers: int) -> None:
        """At most `workers` cells run at once."""
        self._rooms, self._options = rooms, options
        self._budget = options.memory_bytes or _memory("MemTotal") // 4
        self._books = SessionBooks(max(options.most_live, workers))
        self._states: dict[str, _State] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.replayed = self.evicted = 0
        """Cells run again, and processes ended to make room."""

    @property
    def live(self) -> int:
        """Sessions that have a process."""
        return self._books.live

    def names(self) -> tuple[str, ...]:
        """The sessions that are open."""
        return tuple(self._states)

    def is_current(self, name: str, last_call: str) -> bool:
        """Whether `last_call` is the last that a session answered here: then its state is known."""
        return name in self._states and self._states[name].last_call == last_call

    async def adopt(self, name: str, cells: Sequence[Cell], last_call: str) -> None:
        """Make a session what these cells make of it: its next cell runs after them.

        `last_call` is empty for one that has not begun.
        """
        state = self._state(name)
        async with state.turn:
            self._books.adopt(name, tuple(cells), began=last_call != "")
            state.last_call = last_call
            await _end(state.take_process())

    async def run(self, call: ToolCall, limits: Limits, running: Running) -> ToolResult:
        """Run a cell. A session's memory, processes and scratch space are limited as for the cell that started its
        process.

        Raises `OSError` if the host can't start a process now.
        """
        state = self._state(call.session)
        async with state.turn:
            if running.aborted or state.over:
                return sandbox_failure(call, "The call or its session was given up.")
            begin = self._books.begin(call.session)
            try:
                result = await self._run(call, limits, running, state, begin)
            except BaseException:  # cancelled too: the books must know that there is no process
                self._books.failed(call.session)
                await _end(state.take_process())
                raise
            self._settle(call, limits, state, result)
        await self._relieve()
        return result

    async def look(self, call: ToolCall, limits: Limits) -> ToolResult | None:
        """Run code of the host's own in a session's process as it is, such as reads its files.

        It is no cell: it has no number, and is not run again where the process is lost; so it must leave no trace.
        None if the session has no process now; none is made for this. Raises `OSError` as `run` does.
        """
        state = self._states.get(call.session)
        if state is None:
            return None
        async with state.turn:
            if state.over or state.process is None or not state.process.alive:
                return None
            self._books.begin(call.session)
            if state.idle is not None:
                state.idle.cancel()
            try:
                number = len(self._books.cells(call.session))
                result = await self._run_cell(state.process, call, limits, number, Running())
            except BaseException:  # cancelled too: who knows how far it got
                self._books.failed(call.session)
                await _end(state.take_process())
                raise
            self._books.looked(call.session, alive=state.process.alive)
            if state.process.alive:
                self._let_wait(call.session, state)
            else:
                await _end(state.take_process())
            return result

    async def _run(self, call: ToolCall, limits: Limits, running: Running, state: _State, begin: Begin) -> ToolResult:
        if begin.evict:
            self.evicted += 1
            await _end(self._states[begin.evict].take_process())
        replayed = 0
        if state.idle is not None:
            state.idle.cancel()
        if begin.replay is not None or state.process is None or not state.process.alive:
            replayed = await self._rebuild(call, limits, running, state)
        process = state.process
        assert process is not None
        result = await self._run_cell(process, call, limits, 1 + len(self._books.cells(call.session)), running)
        if not process.alive:
            state.process = None
        return result.model_copy(update={"restarted": begin.restarted, "replayed": replayed})

    async def _run_cell(
        self, process: SessionProcess, call: ToolCall, limits: Limits, number: int, running: Running
    ) -> ToolResult:
        running.ends_by(process.abort)
        result = verdict(call, limits, await process.run(call.code.encode("utf-8", "surrogatepass"), number, limits))
        ended = not process.alive and result.status != "sandbox_failure"
        return result.model_copy(update={"session_ended": ended})

    async def _rebuild(self, call: ToolCall, limits: Limits, running: Running, state: _State) -> int:
        """Make a new process that has run the session's cells; returns how many those were."""
        deadline = time.monotonic() + REPLAYS_WITHIN_S
        cells = self._books.cells(call.session)
        named = "\n".join([*(cell.code for cell in cells), call.code]).encode("utf-8", "surrogatepass")
        while True:
            await _end(state.take_process())
            await self._relieve()
            process = state.process = SessionProcess(limits, partial(self._lose, call.session))
            await process.start(self._rooms, named)
            for index, cell in enumerate(cells):
                if time.monotonic() > deadline:
                    logger.warning("session %s: %d cells were not run again", call.session, len(cells) - index)
                    return index
                again = call.model_copy(update={"code": cell.code})
                result = await self._run_cell(process, again, cell.limits, 1 + index, running)
                self.replayed += 1
                if result.status == "sandbox_failure":
                    raise OSError(f"cell {1 + index} of a session could not be run again: {result.reason}")
                if result.session_ended:
                    logger.warning("session %s: cell %d can't be run again: %s", call.session, 1 + index, result.reason)
                    cells = self._books.left_out(call.session, index)
                    break
            else:
                return len(cells)

    def _settle(self, call: ToolCall, limits: Limits, state: _State, result: ToolResult) -> None:
        """Enter into the books what came of a cell."""
        if result.status == "sandbox_failure":
            self._books.failed(call.session)
            return
        state.last_call = call.id
        self._books.finished(call.session, Cell(code=call.code, limits=limits), alive=not result.session_ended)
        if state.process is not None:
            self._let_wait(call.session, state)

    def _let_wait(self, name: str, state: _State) -> None:
        """A session's process waits for its next cell, `idle_seconds` at most."""
        loop = asyncio.get_running_loop()
        state.idle = loop.call_later(self._options.idle_seconds, self._lose, name)

    async def end(self, name: str) -> None:
        """A session is over: a cell of it that runs is ended, and nothing of it is kept."""
        state = self._states.get(name)
        if state is None:
            return
        if state.turn.locked() and state.process is not None:
            state.process.abort()
        state.over = True
        async with state.turn:
            self._books.forget(name)
            self._states.pop(name, None)
            await _end(state.take_process())

    async def close(self) -> None:
        """End all sessions, and give back what they shared. No cell may be running."""
        await asyncio.gather(*[self.end(name) for name in self.names()])
        await asyncio.gather(*self._ending)
        await self._rooms.close()

    def _state(self, name: str) -> _State:
        return self._states.setdefault(name, _State())

    def _lose(self, name: str) -> None:
        """The process of a session that waits has ended, or has waited too long."""
        if self._books.lost(name):
            task = asyncio.get_running_loop().create_task(_end(self._states[name].take_process()))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _relieve(self) -> None:
        """End waiting sessions while all of them together, or the machine, are short of memory."""
        held = {name: state.process.memory_bytes() for name, state in self._states.items() if state.process is not None}
        excess = max(
            sum(held.values()) - self._budget, int(_memory("MemTotal") * _SPARE_SHARE) - _memory("MemAvailable")
        )
        leaving = [self._states[name].take_process() for name in self._books.to_relieve(excess, held)]
        self.evicted += len(leaving)
        await asyncio.gather(*[_end(process) for process in leaving])


async def _end(process: SessionProcess | None) -> None:
    if process is not None:
        await process.end()


def _memory(name: str) -> int:
    """Bytes, from proc_meminfo(5)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")
