"""Sessions whose process is gone, whoever ended it: what is told, and what running their cells again brings back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from env import session_process, sessions
from env.cgroup_hierarchy import find_hierarchy
from env.host_state import Role, sandbox_processes
from env.interpreters import Interpreters
from env.tool_call import Cell, Limits, ToolResult
from tests.env.conftest import children_of_this_process, descendants, out_of_time
from tests.env.notebooks import MIB, Notebook, Open, inits, open_notebook, rooms
from tests.support.waiting import until

__all__ = ["open_notebook"]


OUT_OF_MEMORY = "x = 4\nhold = []\nwhile True: hold.append(bytes(1 << 20))", "memory", {}


async def asleep_in(cell: Notebook, before: str = "") -> asyncio.Task[ToolResult]:
    """A cell that runs `before` and then sleeps for long; it has had time to begin."""
    task = asyncio.create_task(cell(f"{before}\nimport time; time.sleep(60)"))
    await asyncio.sleep(0.2)
    return task


async def test_what_ends_the_process_is_told_at_once_and_by_the_next_cell(open_notebook: Open):
    cell = open_notebook()

    async def is_rebuilt() -> None:
        following = await cell("x")
        assert (following.stdout, following.restarted, following.session_ended) == ("1\n", True, False), following
        assert following.replayed > 0

    await cell("x = 1")
    ended, _ = await out_of_time(cell, "x = 2\nprint('before', flush=True)\nwhile True: pass")
    assert (ended.status, ended.stdout, ended.session_ended) == ("timeout", "before\n", True)
    await is_rebuilt()
    for code, status, limits in (
        ("x = 3\nwhile True: print('a' * 1000)", "output_limit", {"output_bytes": 4096}),
        *([OUT_OF_MEMORY] if find_hierarchy() is not None else []),  # else it is an exception, and the session goes on
        ("x = 5\nimport ctypes; ctypes.string_at(0)", "killed", {}),
        ("x = 6\nimport os; os._exit(9)", "error", {}),
    ):
        ended = await cell(code, **limits)
        assert (ended.status, ended.session_ended) == (status, True), ended
        assert not ended.stdout.startswith("before")
        await is_rebuilt()
    assert not (await cell("x")).restarted


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


async def test_a_cancelled_cell_ends_its_process_and_counts_as_not_made(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = await asleep_in(cell, "x = 2")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not rooms())
    result = await cell("x")
    assert (result.stdout, result.restarted, result.replayed) == ("1\n", True, 1)


async def test_the_end_of_a_session_frees_it_also_while_a_cell_runs(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = await asleep_in(cell)
    await cell.end()
    assert not rooms()
    assert (await task).status == "sandbox_failure"
    result = await cell("'x' in globals()")
    assert (result.stdout, result.restarted, result.replayed) == ("False\n", False, 0)


async def test_a_room_that_others_kill_is_our_failure_and_rebuilt(open_notebook: Open):
    cell = open_notebook()
    await cell("x = 1")
    task = await asleep_in(cell, "x = 2")
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


@pytest.mark.parametrize("role", ["jail", "init"])
async def test_a_room_that_dies_slowly_is_not_taken_for_the_cells_own_doing(
    open_notebook: Open, monkeypatch: pytest.MonkeyPatch, role: Role
):
    monkeypatch.setattr(session_process, "_TELLS_WITHIN_S", 0.0)  # as if init took longer to die than that
    cell = open_notebook()
    for _ in range(3):
        await cell("x = 1")
        task = await asleep_in(cell)
        for pid in [process.pid for process in sandbox_processes() if process.role == role]:
            with contextlib.suppress(ProcessLookupError):  # one above it has taken it along
                os.kill(pid, signal.SIGKILL)
        assert (await task).status == "sandbox_failure"


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
    limits = Limits(wall_seconds=30.0, memory_bytes=128 * MIB)
    await known.adopt("a", [Cell(code=code, limits=limits) for code in codes], "there-4")
    assert known.is_current("a", "there-4")
    result = await cell("x")
    assert (result.stdout, result.restarted, result.replayed) == ("11\n", True, 3)
    assert known.is_current("a", result.id)
    assert ((await cell("x")).stdout, known.replayed) == ("11\n", 5), "two cells, and then three without the bad one"


async def test_the_jail_of_sessions_is_replaced_once_it_has_had_enough_and_has_none():
    limits = Limits(wall_seconds=30.0)
    pool = Interpreters(limits, workers=1, run_id="tests", recycle_after=2)
    notebooks = [Notebook(pool, name) for name in "abcd"]
    jails: list[set[int]] = []
    try:
        for cell in notebooks:
            assert (await cell("x = 1")).status == "success"
            jails.append({process.pid for process in sandbox_processes() if process.role == "jail"})
            if len(jails) == 3:
                assert not (await notebooks[0]("x")).restarted
                await asyncio.gather(*[each.end() for each in notebooks[:3]])
        assert [len(each) for each in jails] == [1] * 4
        assert jails[0] == jails[1] == jails[2] != jails[3]
    finally:
        await pool.close()
