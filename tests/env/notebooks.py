"""Sessions of real sandboxes, as tests use them: who runs cells, and the rooms that they run in."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from env.host_state import HostState, sandbox_processes
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.session_server import LINK
from env.sessions import SessionOptions
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult

MIB = 1 << 20


class Notebook:
    """Runs cells with small limits, one session after another or side by side."""

    def __init__(self, interpreters: Interpreters, session: str = "a") -> None:
        self.interpreters, self.session = interpreters, session
        self._count = 0

    async def __call__(self, code: str, **limits: float) -> ToolResult:
        return await self.interpreters.run(self.call(code, **limits))

    def call(self, code: str, **limits: float) -> ToolCall:
        self._count += 1
        given = Limits.model_validate({"wall_seconds": 30.0, "memory_bytes": 128 * MIB, **limits})
        name = f"{self.session}-{self._count}"
        return ToolCall(id=name, tool=JUPYTER_TOOL, session=self.session, code=code, limits=given)

    def other(self, session: str) -> Notebook:
        return Notebook(self.interpreters, session)

    async def end(self) -> None:
        await (await self.interpreters.sessions()).end(self.session)


type Open = Callable[..., Notebook]


@pytest.fixture
async def open_notebook(isolation: IsolationKind) -> AsyncIterator[Open]:
    """Makes interpreters with few places for sessions; the host is as before when they are closed."""
    made: list[Interpreters] = []

    def make(workers: int = 1, **options: float) -> Notebook:
        bounds = SessionOptions.model_validate({"most_live": 2, **options})
        limits = Limits(wall_seconds=30, memory_bytes=1 << 30)
        pool = Interpreters(limits, workers, run_id="tests", isolation=isolation, sessions=bounds)
        made.append(pool)
        return Notebook(pool)

    before = HostState.now()
    yield make
    for pool in made:
        await pool.close()
    assert not before.differences(HostState.now())


def programs() -> dict[int, dict[str, str]]:
    """What the kernel says (proc_pid_status(5)) of all processes in rooms but inits, by pid."""
    found: dict[int, dict[str, str]] = {}
    for process in sandbox_processes():
        with suppress(OSError):  # it has ended meanwhile
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if process.role == "program":
                found[process.pid] = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    return found


def rooms() -> dict[int, dict[str, str]]:
    """`programs` that run cells. Skips the test where they can't be looked into: what zygotes fork is not dumpable."""
    if os.geteuid() != 0 and not all(os.access(f"/proc/{pid}/fd", os.R_OK) for pid in programs()):
        pytest.skip("only root may look into these processes")
    return {pid: fields for pid, fields in programs().items() if os.path.exists(f"/proc/{pid}/fd/{LINK}")}


def inits() -> list[int]:
    """The first processes of the rooms that there are."""
    spaces = {namespace(pid, "pid") for pid in rooms()} - {""}
    found = [process.pid for process in sandbox_processes() if process.role == "init"]
    return [pid for pid in found if namespace(pid, "pid") in spaces]


def namespace(pid: int, kind: str) -> str:
    """Empty if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except FileNotFoundError:
        return ""
