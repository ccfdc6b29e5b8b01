"""Memory that a sandbox does not get though it may have it: what becomes of its calls."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from env.cgroup_hierarchy import FOLDER, find_hierarchy
from env.host_state import cgroups_of
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.shortage import MemoryShortage, NoSandbox
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult

pytestmark = pytest.mark.skipif(find_hierarchy() is None, reason="this host lets us make no cgroups")

LIMITS = Limits(wall_seconds=30, memory_bytes=256 << 20)
MODEST = "x = [str(i) for i in range(300_000)]\nprint(len(x))"
"""Takes some 20 MiB."""
GREEDY = "x = [str(i) for i in range(10**9)]"
MOST_CALLS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(isolation: IsolationKind) -> AsyncIterator[Interpreters]:
    interpreters = Interpreters(LIMITS, workers=1, run_id="tests", isolation=isolation)
    try:
        assert (await run(interpreters, MODEST)).status == "success"
        yield interpreters
    finally:
        await interpreters.close()


async def run(pool: Interpreters, code: str, session: str = "") -> ToolResult:
    if session:
        return await pool.run(ToolCall(id="c", tool=JUPYTER_TOOL, code=code, session=session, limits=LIMITS))
    return await pool.run(ToolCall(id="c", code=code, limits=LIMITS))


async def starved(pool: Interpreters, session: str = "") -> list[ToolResult]:
    """What came of modest programs until one of them, and something else, was told to have had no memory."""
    results: list[ToolResult] = []
    with MemoryShortage.of(os.getpid()) as shortage:
        while len(results) < MOST_CALLS:
            if not shortage.killed():
                shortage.tighten()
            results.append(await run(pool, MODEST, session))
            if shortage.killed() and results[-1].status == "sandbox_failure":
                assert shortage.refused()
                return results
    raise AssertionError(f"nothing was killed in {MOST_CALLS} calls: {[result.status for result in results]}")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_that_is_refused_what_it_may_have_is_not_the_one_to_blame(pool: Interpreters):
    results = await starved(pool)
    assert {result.status for result in results} <= {"success", "sandbox_failure"}
    assert not results[-1].is_tool_error
    assert (await run(pool, MODEST)).status == "success", "the limit is lifted"


@pytest.mark.asyncio(loop_scope="module")
async def test_one_that_takes_more_than_it_may_is_before_and_after(pool: Interpreters):
    assert (await run(pool, GREEDY)).status == "memory"
    await starved(pool)
    assert (await run(pool, GREEDY)).status == "memory"


@pytest.mark.asyncio(loop_scope="module")
async def test_of_two_at_once_the_last_one_lifts_the_limit(pool: Interpreters):
    with MemoryShortage.of(os.getpid()) as long:
        unlimited = long._limit.read_text()
        with MemoryShortage.of(os.getpid()) as short:
            short.tighten()
            tight = short._limit.read_text()
        assert long._limit.read_text() == tight != unlimited
    assert long._limit.read_text() == unlimited


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cell_is_run_again_after_what_it_was_built_on(pool: Interpreters):
    assert (await run(pool, "y = 41", "s")).status == "success"
    results = await starved(pool, "s")
    assert {result.status for result in results} <= {"success", "sandbox_failure"}
    again = await run(pool, "print(y + 1)", "s")
    assert (again.stdout, again.restarted) == ("42\n", True)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_without_a_sandbox_can_not_be_short_of_memory():
    with pytest.raises(NoSandbox, match="no calls in cgroups"), MemoryShortage.of(1):
        pass
    assert not list(cgroups_of(1))


def test_that_a_sandbox_was_removed_meanwhile_is_told_by_name():
    hierarchy = find_hierarchy()
    assert hierarchy is not None
    folder = hierarchy.memory / FOLDER / f"tests-removed-{os.getpid()}"
    folder.mkdir()
    shortage = MemoryShortage(hierarchy.version, folder)
    folder.rmdir()
    for ask in (shortage.tighten, shortage.refused):
        with pytest.raises(NoSandbox, match="was removed"):
            ask()
    assert shortage.killed() == 0
