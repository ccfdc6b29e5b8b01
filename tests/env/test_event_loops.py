"""Interpreters where they are made and used outside a test's own event loop."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest
import uvloop

from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, Limits, Status, ToolCall
from tests.env.conftest import host_left_as_it_was, look_at_host
from tests.support.waiting import until


async def _run_three() -> list[Status]:
    pool = Interpreters(Limits(wall_seconds=60), workers=2)
    try:
        given = {"print(1)": 60.0, "while True: pass": 0.5, "1 / 0": 60.0}
        calls = [ToolCall(id=code, code=code, limits=Limits(wall_seconds=seconds)) for code, seconds in given.items()]
        results = await asyncio.gather(*map(pool.run, calls))
        return [result.status for result in results]
    finally:
        await pool.close()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_any_event_loop_will_do(factory: Callable[[], asyncio.AbstractEventLoop]):
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_run_three())  # what a kind of loop makes once
    with host_left_as_it_was(), asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(_run_three()) == ["success", "timeout", "error"]


def test_an_event_loop_that_is_torn_down_takes_its_programs_with_it():
    pools: list[Interpreters] = []

    async def leave_one_running() -> None:
        pools.append(Interpreters(Limits(), workers=1))
        task = asyncio.create_task(pools[0].run(ToolCall(id="a", code="while True: pass")))
        await until(lambda: look_at_host().children)
        await asyncio.sleep(0.2)
        assert not task.done()

    asyncio.run(leave_one_running())
    assert look_at_host().children == 0
    asyncio.run(pools[0].close())


def test_another_event_loop_than_the_first_is_refused():
    with host_left_as_it_was(), asyncio.Runner() as own, asyncio.Runner() as other:
        pool = Interpreters(Limits(), workers=1)
        cell = ToolCall(id="a", tool=JUPYTER_TOOL, session="a", code="6 * 7")
        assert own.run(pool.run(cell)).stdout == "42\n"
        for use in (pool.run(ToolCall(id="b", code="1")), pool.describe(), pool.sessions(), pool.close()):
            with pytest.raises(RuntimeError, match=r"belong to another event loop.*each `asyncio.run` has a loop"):
                other.run(use)
        own.run(pool.close())


async def test_closed_interpreters_start_nothing_when_they_are_described():
    pool = Interpreters(Limits(), workers=1)
    await pool.close()
    with pytest.raises(OSError, match="closed"):
        await pool.describe()


def test_no_workers_are_refused_with_the_number():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Interpreters(Limits(), workers=0)


def test_looking_at_the_host_sees_a_child():
    child = subprocess.Popen(["sleep", "5"])
    try:
        assert look_at_host().children == look_at_host().processes == 1
    finally:
        child.kill()
        child.wait()
