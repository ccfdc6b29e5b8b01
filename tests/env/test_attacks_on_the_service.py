"""What befalls the sandbox as a service. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from env.call_scheduler import CallScheduler
from env.host_state import Role, sandbox_processes
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, Limits, ToolCall
from tests.env.conftest import host_left_as_it_was
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS = pytest.mark.parametrize("tool", [PYTHON_TOOL, JUPYTER_TOOL], ids=["program", "cell"])


def call(name: str, code: str, tool: str = PYTHON_TOOL, wall_seconds: float = 30.0) -> ToolCall:
    limits = Limits(wall_seconds=wall_seconds, memory_bytes=128 << 20)
    return ToolCall(id=name, code=code, tool=tool, limits=limits, session="s" * (tool == JUPYTER_TOOL))


@pytest.mark.parametrize("number", [40], ids=["40-upload"])
async def test_a_call_that_brings_files_is_refused(number: int):
    with pytest.raises(ValidationError, match="files"):
        ToolCall.model_validate({"id": "1", "code": "1", "files": {"../x": "climbs"}})


WAITS = """
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ctypes.CDLL(None).prctl(15, b'to-be-hit')  # PR_SET_NAME, by which the process is found
signal.sigwait([signal.SIGUSR1])
print(7)
"""


def waiting() -> set[int]:
    """Processes that wait for SIGUSR1."""
    found: set[int] = set()
    for process in sandbox_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/comm").read_text() == "to-be-hit\n":
                found.add(process.pid)
    return found


@TOOLS
@pytest.mark.parametrize("role", ["jail", "init"], ids=["55-jail-killed", "55-init-killed"])
async def test_a_call_whose_sandbox_is_killed_gets_one_answer(isolation: IsolationKind, role: Role, tool: str):
    before = {process.pid for process in sandbox_processes()}
    pool = Interpreters(Limits(wall_seconds=30), workers=1, run_id="tests", isolation=isolation)
    scheduler = CallScheduler(pool, cores=1, workers=1)
    try:
        assert (await scheduler.run(call("first", "x = 1", tool))).status == "success"
        answer = asyncio.ensure_future(scheduler.run(call("hit", WAITS, tool)))
        hit = await until(waiting)
        for pid in {each.pid for each in sandbox_processes() if each.role == role} - before:
            with contextlib.suppress(ProcessLookupError):  # one above it has taken it along
                os.kill(pid, signal.SIGKILL)
        (again,) = await until(lambda: waiting() - hit)
        os.kill(again, signal.SIGUSR1)
        result = await answer
        assert (result.id, result.status, result.stdout) == ("hit", "success", "7\n")
        assert scheduler.retried >= 1
    finally:
        await asyncio.gather(scheduler.close(), pool.close())


async def burst(pool: Interpreters, calls: list[ToolCall]) -> Counter[str]:
    scheduler = CallScheduler(pool, cores=1, workers=1)
    try:
        results = await asyncio.gather(*[scheduler.run(each) for each in calls])
        assert all(result.stdout == f"{result.id}\n" for result in results)
        return Counter(result.id for result in results)
    finally:
        await scheduler.close()


@pytest.mark.parametrize("number", [56], ids=["56-burst"])
async def test_in_a_burst_each_call_is_answered_once(interpreters: Interpreters, number: int):
    count = 200 if interpreters.isolation_kind == "zygote" else 40  # benchmarks/ has 45,000
    with host_left_as_it_was():
        seen = await burst(interpreters, [call(f"{n}", f"print({n})") for n in range(count)])
    assert seen == Counter({f"{n}": 1 for n in range(count)})


@pytest.mark.parametrize("number", [57], ids=["57-one-slow"])
async def test_a_slow_call_does_not_hold_back_the_others(isolation: IsolationKind, number: int):
    pool = Interpreters(Limits(wall_seconds=30), workers=2, run_id="tests", isolation=isolation)
    scheduler = CallScheduler(pool, cores=2, workers=2)
    try:
        order: list[str] = []
        slow, *quick = [
            scheduler.submit(each) for each in (call("slow", WAITS), *(call(f"{n}", "1") for n in range(5)))
        ]
        for answer in (slow, *quick):
            answer.add_done_callback(lambda done: order.append(done.result().id))
        (waits,) = await until(waiting)
        await asyncio.gather(*quick)
        os.kill(waits, signal.SIGUSR1)
        assert (await slow).stdout == "7\n"
        assert order == ["0", "1", "2", "3", "4", "slow"]
    finally:
        await asyncio.gather(scheduler.close(), pool.close())


@pytest.mark.parametrize("times", [5], ids=["58-doubled"])
async def test_calls_with_one_id_or_one_text_are_all_answered(interpreters: Interpreters, times: int):
    with host_left_as_it_was():
        seen = await burst(interpreters, [call("same", "print('same')")] * times)
    assert seen == Counter(same=times)
