"""How sharp the limit on memory is where no cgroup can be made: the real thing, made to find none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from env import cgroup_hierarchy
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.tool_call import Limits
from tests.env.conftest import Program

LIMIT_MIB = 128
WALL_SECONDS = 30.0
pytestmark = pytest.mark.asyncio(loop_scope="module")

TAKES = {
    "at once": "x = bytearray({mib} << 20)",
    "by numpy": "import numpy\nx = numpy.ones({mib} << 17)",
    "in pieces of the C library's heap": "x = [' ' * (1 << 16) for _ in range({mib} << 4)]",
    "in small objects": "x = [bytes(400) for _ in range(({mib} << 20) // 448)]",
    "in a thread": "import concurrent.futures as c\nx = c.ThreadPoolExecutor().submit(bytearray, {mib} << 20).result()",
}
"""How a program may come to hold so many MiB."""
BY_A_CHILD = """
import os
if os.fork() == 0:
    try:
        print(len(bytearray({mib} << 20)) >> 20)
    except MemoryError:
        print("refused")
else:
    os.wait()
"""
HONEST = """
import multiprocessing, threading, time
import numpy
from concurrent.futures import ThreadPoolExecutor
matrix = numpy.eye(600) + 1
print(numpy.linalg.inv(matrix @ matrix).shape)
with ThreadPoolExecutor({threads}) as pool:
    print(len({{*pool.map(lambda number: (time.sleep(0.1), threading.get_ident(), matrix.sum())[1], range(60))}}))
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def interpreters(isolation: IsolationKind) -> AsyncIterator[Interpreters]:
    """As that of the other tests, without a cgroup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroup_hierarchy, "find_hierarchy", lambda: None)
        pool = Interpreters(Limits(wall_seconds=WALL_SECONDS), workers=1, run_id="tests", isolation=isolation)
        try:
            yield pool
        finally:
            await pool.close()


@pytest.mark.parametrize("takes", TAKES)
async def test_a_program_that_takes_half_more_than_its_limit_is_stopped_and_one_that_takes_half_is_not(
    run_code: Program, takes: str
):
    over = await run_code(TAKES[takes].format(mib=LIMIT_MIB + 64), wall_seconds=WALL_SECONDS)
    assert (over.status, over.reason) == ("memory", "The program needed more than its limit of 128 MiB of memory.")
    within = await run_code(TAKES[takes].format(mib=LIMIT_MIB - 64), wall_seconds=WALL_SECONDS)
    assert within.status == "success", within


async def test_a_child_has_the_limit_for_itself(run_code: Program):
    assert (await run_code(BY_A_CHILD.format(mib=LIMIT_MIB + 64))).stdout == "refused\n"
    assert (await run_code(f"x = bytearray(64 << 20)\n{BY_A_CHILD.format(mib=LIMIT_MIB - 64)}")).stdout == "64\n"


async def test_shared_memory_is_limited_by_address_space(run_code: Program):
    result = await run_code(f"import mmap\nmmap.mmap(-1, {LIMIT_MIB + 272} << 20)")
    assert result.status == "error" and "Cannot allocate memory" in result.stderr


async def test_libraries_threads_and_children_fit_the_default_limit(run_code: Program):
    threads = Limits().processes - 2
    code = HONEST.format(threads=threads)
    result = await run_code(code, wall_seconds=WALL_SECONDS, memory_bytes=Limits().memory_bytes)
    assert result.stdout == f"(600, 600)\n{threads}\n[1, 2]\n", result


@pytest.mark.parametrize(("asked", "left"), [(1 << 29, 1 << 29), (1 << 31, 1 << 30)])
async def test_a_limit_that_the_host_has_set_is_kept(asked: int, left: int):
    code = (
        "import resource; from env import runner; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30));"
        f"runner.limit_data({asked}); print(resource.getrlimit(resource.RLIMIT_DATA))"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    shown, _ = await child.communicate()
    assert shown.decode() == f"({left}, {left})\n"
