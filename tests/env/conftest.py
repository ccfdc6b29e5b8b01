"""Real jails, and a look at the host before and after."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

import env.jail_per_call
import env.zygotes
from env.host_state import cgroups_of
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jails users, and look into them")


@dataclass(frozen=True)
class Host:
    """What a call must leave as it was."""

    children: int
    processes: int
    """Of the children, with all that they have started: a room and all of its processes are gone after a call."""
    mounts: tuple[str, ...]
    cgroups: frozenset[str]
    descriptors: Counter[str]
    """What our descriptors lead to, without the numbers that differ between two of a kind."""
    scratch: frozenset[str]
    """Temporary files."""


def children_of_process(pid: int) -> frozenset[int]:
    """Children of any of its threads, those that nobody has waited for among them."""
    return frozenset(child.pid for child in psutil.Process(pid).children())


def children_of_this_process() -> frozenset[int]:
    return children_of_process(os.getpid())


@pytest.fixture(scope="session", autouse=True)
def no_other_children() -> None:
    """What these tests see of children, and kill, must be their own (see tests/conftest.py)."""
    assert children_of_this_process() == frozenset(), "run the tests of env before what keeps processes, such as Ray"


@pytest.fixture(scope="module", autouse=True)
def own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for them: in that of the machine other runs of greenroom have theirs."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


def look_at_host() -> Host:
    return Host(
        children=len(children_of_this_process()),
        processes=len(descendants(children_of_this_process())),
        mounts=tuple(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=frozenset(cgroups_of(os.getpid())),
        descriptors=_open_descriptors(),
        scratch=frozenset(os.listdir(tempfile.gettempdir())),
    )


def descendants(pids: Iterable[int]) -> frozenset[int]:
    """Processes and all that they have started, as far as it is still there."""
    found: set[int] = set()
    for pid in pids:
        try:
            found |= {pid, *descendants(children_of_process(pid))}
        except psutil.NoSuchProcess:
            continue
    return frozenset(found)


def _open_descriptors() -> Counter[str]:
    """All but the configurations and the runner, which are kept on purpose (a bounded number)."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    kept = ("/memfd:greenroom-config", "/memfd:greenroom-runner")
    return Counter(re.sub(r"\d+", "N", target) for target in targets if not target.startswith(kept))


@contextmanager
def host_left_as_it_was() -> Iterator[None]:
    before = look_at_host()
    yield
    assert look_at_host() == before


ISOLATIONS: tuple[IsolationKind, ...] = ("zygote", "jail-per-call")


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> IsolationKind:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def interpreters(isolation: IsolationKind) -> AsyncIterator[Interpreters]:
    """One worker that has run a call, so that whatever is made once has been made. Shared: no call may soil it."""
    limits = Limits(wall_seconds=30, memory_bytes=1 << 30, output_bytes=1 << 20)
    pool = Interpreters(limits, workers=1, run_id="tests", isolation=isolation)
    try:
        for library in ("mpmath", "numpy"):
            call = ToolCall(id=library, code=f"import {library}", limits=Limits(wall_seconds=30))
            cell = call.model_copy(update={"tool": JUPYTER_TOOL, "session": library})
            assert [(await pool.run(each)).status for each in (call, cell)] == ["success", "success"]
            await (await pool.sessions()).end(library)
        yield pool
    finally:
        await pool.close()


def break_jails(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on jails are to run a program that is not there."""

    def broken(*_: object, **__: object) -> str:
        return 'exec_bin { path: "/no/such/program" }\n'

    monkeypatch.setattr(env.zygotes, "zygote_jail_config", broken)
    monkeypatch.setattr(env.jail_per_call, "jail_config", broken)


class Program:
    """Runs code with small limits."""

    def __init__(self, interpreters: Interpreters) -> None:
        self._interpreters = interpreters
        self._count = 0

    async def __call__(self, code: str, stdin: str = "", **limits: float) -> ToolResult:
        self._count += 1
        given = Limits.model_validate({"wall_seconds": 30.0, "memory_bytes": 128 << 20, **limits})
        return await self._interpreters.run(ToolCall(id=f"call-{self._count}", code=code, input=stdin, limits=given))


async def out_of_time(run: Callable[..., Awaitable[ToolResult]], code: str) -> tuple[ToolResult, float]:
    """What comes of code that prints something and then never ends, and its limit in seconds: the shortest one in which
    it got to print, which on a busy machine may take longer than on others.
    """
    for limit_s in (0.3, 2.5, 20.5):
        result = await run(code, wall_seconds=limit_s)
        if result.stdout:
            break
    return result, limit_s


@pytest.fixture
def run_code(interpreters: Interpreters) -> Program:
    return Program(interpreters)
