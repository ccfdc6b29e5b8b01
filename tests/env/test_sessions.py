"""Sessions in real jails: cells that share names, processes that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from env import cgroups, sessions
from env.host_state import HostState, sandbox_processes
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.session_server import LINK
from env.sessions import SessionOptions
from env.tool_call import JUPYTER_TOOL, Cell, Limits, ToolCall, ToolResult
from tests.env.conftest import children_of_this_process, descendants, until

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
        given = Limits.model_validate({"wall_seconds": 10.0, "memory_bytes": 128 * MIB, **limits})
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


def rooms() -> dict[int, dict[str, str]]:
    """What the kernel says (proc_pid_status(5)) of the processes that run cells, by pid."""
    found: dict[int, dict[str, str]] = {}
    for process in sandbox_processes():
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        if process.role == "program" and os.path.exists(f"/proc/{process.pid}/fd/{LINK}"):
            found[process.pid] = fields
    return found


def inits() -> list[int]:
    """The first processes of the rooms that there are."""
    spaces = {namespace(pid, "pid") for pid in rooms()}
    found = [process.pid for process in sandbox_processes() if process.role == "init"]
    return [pid for pid in found if namespace(pid, "pid") in spaces]


def processor_ticks(pid: int) -> int:
    """User and system time (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def namespace(pid: int, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def test_names_stay_from_cell_to_cell_and_the_last_expression_is_shown(open_notebook: Open):
    cell = open_notebook()
    first = await cell("import math\nx = 6\ndef double(n): return 2 * n\nprint('defined')\nx")
    assert (first.status, first.stdout, first.exit_code) == ("success", "defined\n6\n", 0)
    second = await cell("print(double(x), math.floor(2.5), __name__)")
    assert (second.status, second.stdout) == ("success", "12 2 __main__\n")
    assert (await cell("x = 7;")).stdout == ""
    assert (await cell("x, _ if '_' in globals() else None")).stdout == "(7, None)\n"
    assert not any([second.restarted, second.replayed, second.session_ended])


async def test_an_error_is_shown_with_the_lines_of_all_cells_and_leaves_what_was_before_it(open_notebook: Open):
    cell = open_notebook()
    await cell("def f(n):\n    return 1 / n\n")
    result = await cell("x = 5\nf(0)\nx = 6")
    assert (result.status, result.exit_code, result.session_ended) == ("error", 1, False)
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "cell 2", line 2, in <module>\n    f(0)\n'
        '  File "cell 1", line 2, in f\n    return 1 / n\n           ~~^~~\nZeroDivisionError: division by zero\n'
    )
    assert (await cell("x")).stdout == "5\n"
    assert (await cell("import sys\nprint('a')\nsys.exit(3)")).exit_code == 3
    assert "SyntaxError" in (await cell("x = = 2")).stderr
    assert (await cell("x")).stdout == "5\n"


async def test_sessions_do_not_see_one_another(open_notebook: Open):
    cell = open_notebook()
    other = cell.other("b")
    await cell("x = 1; open('file', 'w').write('a')")
    result = await other("import os; print(os.listdir('.'), 'x' in globals(), os.path.exists('/tmp/file'))")
    assert result.stdout == "[] False False\n"
    assert (await cell("open('file').read()")).stdout == "'a'\n"


async def test_what_ends_the_process_is_told_at_once_and_by_the_next_cell(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    for code, status, limits in (
        ("x = 2\nprint('before', flush=True)\nwhile True: pass", "timeout", {"wall_seconds": 0.3}),
        ("x = 3\nwhile True: print('a' * 1000)", "output_limit", {"output_bytes": 4096}),
        ("x = 4\nhold = []\nwhile True: hold.append(bytes(1 << 20))", "memory", {}),
        ("x = 5\nimport ctypes; ctypes.string_at(0)", "killed", {}),
        ("x = 6\nimport os; os._exit(9)", "error", {}),
    ):
        ended = await cell(code, **limits)
        assert (ended.status, ended.session_ended) == (status, True), ended
        assert ended.stdout.startswith("before") == (status == "timeout")
        following = await cell("x")
        assert (following.stdout, following.restarted, following.session_ended) == ("1\n", True, False), following
        assert following.replayed > 0
    assert not (await cell("x")).restarted


async def test_each_cell_has_its_own_deadline_and_cap(open_notebook: Open):
    cell = open_notebook()
    for _ in range(3):
        result = await cell("import time; time.sleep(0.3); print('x' * 1500)", wall_seconds=0.8, output_bytes=2000)
        assert (result.status, len(result.stdout)) == ("success", 1501)


async def test_of_more_sessions_than_places_the_longest_unused_is_ended_and_rebuilt_by_its_cells(open_notebook: Open):
    cells = [open_notebook()]
    cells += [cells[0].other(name) for name in "bc"]
    for cell in cells:  # two places: the third takes the first one's
        await cell(f"x = ['{cell.session}']")
    assert [len(inits()), (await cells[1]("x.append(1)")).restarted] == [2, False]
    again = await cells[0]("x.append(2); x")
    assert (again.stdout, again.restarted, again.replayed) == ("['a', 2]\n", True, 1)
    assert (await cells[0]("x")).stdout == "['a', 2]\n"
    assert len(inits()) == 2
    counts = await cells[0].interpreters.sessions()
    assert (counts.evicted, counts.replayed) == (2, 1)


async def test_sessions_that_wait_are_ended_when_together_they_hold_too_much(
    open_notebook: Open, monkeypatch: pytest.MonkeyPatch
):
    cell = open_notebook(memory_bytes=60 * MIB)
    other = cell.other("b")
    await cell("x = bytearray(40 << 20)")
    assert len(inits()) == 1
    await other("y = bytearray(40 << 20)")
    await until(lambda: len(inits()) == 1)
    assert not (await other("len(y)")).restarted
    result = await cell("len(x)")
    assert (result.stdout, result.replayed) == (f"{40 << 20}\n", 1)
    # and when the machine is short of memory
    monkeypatch.setattr(sessions, "_memory", lambda name: {"MemTotal": 1 << 40, "MemAvailable": 0}[name])
    await other("1")
    await until(lambda: not rooms())


async def test_a_session_unused_for_long_gives_its_process_up(open_notebook: Open):
    cell = open_notebook(idle_seconds=0.2)
    await cell("x = 1")
    await until(lambda: not rooms())
    result = await cell("x")
    assert (result.stdout, result.replayed) == ("1\n", 1)


async def test_between_cells_nothing_runs(open_notebook: Open):
    cell = open_notebook()
    await cell(
        "import os, threading, time\ncount = 0\ndef spin():\n  global count\n  while True: count += 1\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
        "child = os.fork()\nif not child:\n  while True: pass\n"
        "time.sleep(0.05)"
    )
    assert len(rooms()) == 3, "the keeper, the cells' process and its child"
    await until(lambda: all(fields["State"].startswith("T") for fields in rooms().values()))
    used = {pid: processor_ticks(pid) for pid in rooms()}
    await asyncio.sleep(0.2)
    assert used == {pid: processor_ticks(pid) for pid in rooms()}
    before = int((await cell("count")).stdout)
    after = await cell("time.sleep(0.05); count")
    assert int(after.stdout) > before, "it goes on with the next cell"


async def test_two_cells_of_one_session_run_in_their_order(open_notebook: Open):
    cell = open_notebook(workers=2)
    calls = [cell.call(f"import time; time.sleep({0.1 * (3 - n)}); seen = [*globals().get('seen', []), {n}]; seen")
             for n in range(3)]  # fmt: skip
    results = await asyncio.gather(*[cell.interpreters.run(call) for call in calls])
    assert [result.stdout for result in results] == ["[0]\n", "[0, 1]\n", "[0, 1, 2]\n"]


async def test_a_cancelled_cell_ends_its_process_and_counts_as_not_made(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = asyncio.create_task(cell("x = 2\nimport time; time.sleep(60)"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not rooms())
    result = await cell("x")
    assert (result.stdout, result.restarted, result.replayed) == ("1\n", True, 1)


async def test_the_end_of_a_session_frees_it_also_while_a_cell_runs(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = asyncio.create_task(cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.1)
    await cell.end()
    assert not rooms()
    assert (await task).status == "sandbox_failure"
    result = await cell("'x' in globals()")
    assert (result.stdout, result.restarted, result.replayed) == ("False\n", False, 0)


async def test_a_room_that_others_kill_is_our_failure_and_rebuilt(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = asyncio.create_task(cell("x = 2\nimport time; time.sleep(60)"))
    await asyncio.sleep(0.2)
    (init,) = inits()
    os.kill(init, signal.SIGKILL)
    assert (await task).status == "sandbox_failure"
    result = await cell("x")
    assert (result.stdout, result.replayed) == ("1\n", 1)
    (init,) = inits()
    os.kill(init, signal.SIGKILL)  # while it waits
    known = await cell.interpreters.sessions()
    await until(lambda: known.live == 0)
    assert (await cell("x")).stdout == "1\n"


async def test_when_everything_of_the_sandbox_is_killed_all_sessions_are_rebuilt(open_notebook: Open):
    cell = open_notebook()
    other = cell.other("b")
    await cell("x = 1")
    await other("y = 2")
    for pid in descendants(children_of_this_process()):
        with contextlib.suppress(ProcessLookupError):  # those above it have taken it along
            os.kill(pid, signal.SIGKILL)
    known = await cell.interpreters.sessions()
    await until(lambda: known.live == 0)
    first = await cell("x")
    assert (first.stdout, first.replayed) == ("1\n", 1)
    assert (await other("y")).stdout == "2\n"


async def test_a_session_of_another_host_is_adopted_and_what_ends_its_process_is_left_out(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 'of this host'")
    known = await cell.interpreters.sessions()
    assert known.is_current("a", "a-1") and not known.is_current("a", "there-4") and not known.is_current("b", "")
    codes = ("x = 1; import os", "x = 2; os._exit(0)", "1 / 0", "x += 10")
    limits = Limits(wall_seconds=5.0, memory_bytes=128 * MIB)
    await known.adopt("a", [Cell(code=code, limits=limits) for code in codes], "there-4")
    assert known.is_current("a", "there-4")
    result = await cell("x")
    assert (result.stdout, result.restarted, result.replayed) == ("11\n", True, 3)
    assert known.is_current("a", result.id)
    assert ((await cell("x")).stdout, known.replayed) == ("11\n", 5), "two cells, and then three without the bad one"


async def test_the_kernel_says_from_outside_what_protects_a_session(open_notebook: Open, isolation: IsolationKind):
    cell = open_notebook()
    others = [cell, cell.other("b")]
    for one in others:
        await one("1")
    seen = rooms()
    assert len(seen) == 4, "a keeper and a process for cells each"
    for fields in seen.values():
        assert fields["Seccomp"] == "2" and fields["NoNewPrivs"] == "1" and int(fields["CapEff"], 16) == 0
        assert int(fields["CapBnd"], 16) == 0 and int(fields["Uid"].split()[0]) != os.getuid()
        assert fields["NSpid"].split()[-1] != "1"
    users = {fields["Uid"] for fields in seen.values()}
    assert len(users) == (2 if isolation == "zygote" else 1)
    spaces = {kind: {namespace(pid, kind) for pid in seen} for kind in ("pid", "mnt", "ipc", "net")}
    ours = {kind: namespace(os.getpid(), kind) for kind in spaces}
    assert {kind: len(spaces[kind]) for kind in ("pid", "mnt", "ipc")} == {"pid": 2, "mnt": 2, "ipc": 2}
    assert all(ours[kind] not in spaces[kind] for kind in spaces)
    if cgroups.find_hierarchy() is not None:
        assert len({cgroup(pid) for pid in seen}) == 2


async def test_what_is_written_to_every_descriptor_ends_no_cell(open_notebook: Open):
    cell = open_notebook()
    forged = "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'done 1 0 0 0')\n  except OSError: pass\n"
    result = await cell(forged + "import time; time.sleep(0.2); print('to the end')\nraise SystemExit(3)")
    assert (result.stdout, result.exit_code) == ("to the end\n", 3)
    flood = await cell(f"import os\nwhile True: os.write({LINK}, b'ended 0')")
    assert (flood.status, flood.signal, flood.session_ended) == ("killed", 9, True), flood
    assert (await cell("1")).stdout == "1\n"


async def test_without_cgroups_limits_of_processes_stand_in(open_notebook: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cgroups, "find_hierarchy", lambda: None)
    cell = open_notebook()
    await cell("x = 1")
    assert (await cell("y = bytearray(600 << 20)")).status == "memory"
    assert (await cell("import os\nwhile True: os.fork()", wall_seconds=2)).status in ("error", "timeout")
    assert (await cell("x")).stdout == "1\n"


async def test_what_is_no_cell_is_an_invalid_call(open_notebook: Open):
    pool = open_notebook().interpreters
    lost = await pool.run(ToolCall(id="1", tool=JUPYTER_TOOL, code="1"))
    fed = await pool.run(ToolCall(id="2", tool=JUPYTER_TOOL, session="a", code="1", input="x"))
    assert (lost.status, lost.reason) == ("invalid_call", "A call of 'jupyter_code' needs a session.")
    assert (fed.status, fed.reason) == ("invalid_call", "'jupyter_code' has no standard input.")


async def test_the_last_words_of_a_cell_are_its_own(open_notebook: Open):
    cell = open_notebook()
    for n in range(20):
        assert (await cell(f"import sys; print({n}); print({n}, file=sys.stderr)")).stdout == f"{n}\n"
        assert (await cell(f"import os; os.system('true'); os.write(2, b'{n}')")).stderr == f"{n}"
