"""What is particular to zygotes: what protects a call, and what becomes of a jail."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import env.zygote_jail
import env.zygotes
from env import cgroup_hierarchy
from env.image import Image
from env.interpreters import Interpreters
from env.isolation import NO_CGROUP, ONE_USER, IsolationKind
from env.jail import THREADS
from env.tool_call import Limits, ToolCall, ToolResult
from env.user_ids import NOBODY, UserIds
from env.zygote_bundle import bundle
from env.zygote_jail import ZygoteJail
from env.zygotes import Zygotes
from tests.env.conftest import (
    ISOLATIONS,
    children_of_this_process,
    descendants,
    host_left_as_it_was,
    needs_root,
)
from tests.support.waiting import until

ONE = UserIds(NOBODY if os.geteuid() == 0 else os.geteuid(), 1)


class Pools:
    """Makes pools and closes them."""

    def __init__(self) -> None:
        self.made: list[Interpreters] = []
        self.others = children_of_this_process()

    def __call__(self, workers: int = 1, **options: object) -> Interpreters:
        self.made.append(Interpreters(Limits(wall_seconds=30), workers=workers, **options))  # pyright: ignore
        return self.made[-1]

    def processes(self) -> dict[int, dict[str, str]]:
        """What the kernel says (proc_pid_status(5)) of all processes of these pools' jails."""
        found: dict[int, dict[str, str]] = {}
        for pid in descendants(children_of_this_process() - self.others):
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[pid] = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return found


@pytest.fixture
async def pools() -> AsyncIterator[Pools]:
    made = Pools()
    yield made
    for pool in made.made:
        await pool.close()


def cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def run(pool: Interpreters, code: str, **limits: float) -> ToolResult:
    given = Limits.model_validate({"wall_seconds": 20.0, "memory_bytes": 128 << 20, **limits})
    return await pool.run(ToolCall(id=code[:40], code=code, limits=given))


def in_rooms(processes: dict[int, dict[str, str]]) -> dict[int, list[int]]:
    """Pids of processes in rooms -> their pids seen from the host, from the jail and from the room."""
    numbers = {pid: [int(n) for n in status["NSpid"].split()] for pid, status in processes.items()}
    deepest = max(map(len, numbers.values()), default=0)
    return {pid: seen for pid, seen in numbers.items() if len(seen) == deepest}


@needs_root
async def test_the_kernel_confirms_from_outside_what_protects_a_program(pools: Pools):
    pool = pools()
    await run(pool, "1")
    task = asyncio.create_task(run(pool, "import time; time.sleep(20)"))

    def program() -> int:
        return next((pid for pid, seen in in_rooms(pools.processes()).items() if seen[-1] == 2), 0)

    pid = await until(lambda: program() if pools.processes().get(program(), {}).get("CapEff") == "0" * 16 else 0)
    processes = pools.processes()
    status = processes[pid]
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    users = set(status["Uid"].split())
    assert len(users) == 1
    sharing = [p for p, s in processes.items() if p != pid and set(s["Uid"].split()) & users]
    assert sharing == []  # no process of the jail has its user, and so none of the host's
    namespaces = ("pid", "mnt", "ipc", "net", "user", "uts")
    assert all(os.readlink(f"/proc/{pid}/ns/{n}") != os.readlink(f"/proc/self/ns/{n}") for n in namespaces)
    if cgroup_hierarchy.find_hierarchy() is not None:
        assert f"@{os.getpid()}-" in cgroup_of(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@needs_root
async def test_every_call_is_confirmed_and_users_differ_from_call_to_call(pools: Pools):
    pool = pools()
    shown = [(await run(pool, "import os; os.getuid()")).stdout for _ in range(5)]
    assert len(set(shown)) == 5
    isolation = await pool.isolation()
    assert isinstance(isolation, Zygotes)
    if not isolation.weaknesses:
        seen = isolation.confirmed
        assert {seen.calls, seen.init, seen.own_user, seen.seccomp, seen.no_rights, seen.memory_limit} == {5}


async def test_a_jail_is_replaced_after_its_calls_and_callers_do_not_notice(pools: Pools):
    pool = pools(recycle_after=3)
    jails: list[frozenset[int]] = []
    for number in range(7):
        assert (await run(pool, f"{number}")).stdout == f"{number}\n"
        jails.append(children_of_this_process() - pools.others)
    assert [len(jail) for jail in jails] == [1] * 7
    assert jails[0] == jails[2] != jails[3] == jails[5] != jails[6]


async def test_a_zygote_that_dies_is_our_failure_and_is_replaced(pools: Pools):
    pool = pools()
    await run(pool, "1")
    with host_left_as_it_was():
        task = asyncio.create_task(run(pool, "import time; time.sleep(20)"))
        await until(lambda: any(seen[-1] == 2 and len(seen) == 3 for seen in in_rooms(pools.processes()).values()))
        (zygote,) = [pid for pid, status in pools.processes().items() if status["NSpid"].split()[1:] == ["2"]]
        os.kill(zygote, signal.SIGKILL)
        assert (await task).status == "sandbox_failure"
        assert (await run(pool, "2")).stdout == "2\n"


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_zygote_that_is_killed_before_it_is_ready_is_noticed_at_once(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, nth: int
):
    """The first one's link stays open when it ends: nsjail has it, too."""
    seen: list[int] = []
    watch = ZygoteJail._watch

    def watched(jail: ZygoteJail, pid: int) -> None:
        watch(jail, pid)
        seen.append(pid)
        if len(seen) == nth:
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(ZygoteJail, "_watch", watched)
    monkeypatch.setattr(env.zygote_jail, "STARTS_WITHIN_S", 3600.0)  # whoever waits for that waits too long
    code = "import numpy; print(numpy.arange(3).sum())"
    pool = pools()
    assert (await run(pool, code)).status == "sandbox_failure"
    assert len(seen) == nth
    assert (await run(pool, code)).stdout == "3\n"


async def test_a_program_out_of_memory_does_not_cost_the_zygote(pools: Pools):
    if cgroup_hierarchy.find_hierarchy() is None or os.geteuid() != 0:
        pytest.skip("needs cgroups, and root to protect zygotes from the out-of-memory killer")
    pool = pools()
    await run(pool, "import numpy")
    before = children_of_this_process()
    for _ in range(3):
        assert (await run(pool, "import os\nos.fork()\nx = bytearray(300 << 20)")).status == "memory"
    assert children_of_this_process() == before


async def test_programs_do_not_share_chance(pools: Pools):
    pool = pools()
    code = "import random, numpy\nprint(random.random(), numpy.random.rand())"
    first, second = [(await run(pool, code)).stdout.split() for _ in range(2)]
    assert len(first) == 2 and not set(first) & set(second)


AS_IN_A_FRESH_INTERPRETER = """
import gc, json, sys, weakref
import numpy, sympy
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage)
class Node: pass
def cycle(gone=None):
    one, other = Node(), Node()
    one.other, other.one = other, one
    return weakref.ref(one, gone)
gc.collect()
watch = cycle(lambda _: print("gone"))
print(watch() is None, gc.collect(), watch() is None)
print(any(one() is None for one in [cycle() for _ in range(5000)]))  # collected without being asked for
print(sys.getrefcount(Node), sys.getrefcount(object()), sys.getrefcount([watch]))
class Mine(sympy.Symbol): pass
mine = weakref.ref(Mine)
print(Mine("m") + 1, Mine in sympy.Symbol.__subclasses__(), sympy.Symbol("m") == Mine("m"))
sympy.Symbol.added = [1]
sympy.Symbol("q").added.append(2)
print(sympy.Symbol("r").added, sys.modules["numpy"] is numpy)
del sympy.Symbol.added, sys.modules["json"]
import json
print(hasattr(sympy.Symbol("q"), "added"), json.dumps([1, {"a": None}]))
x = sympy.Symbol("x")
print(sympy.solve(2*x**2 + 7*x - 15, x), sympy.integrate(x * sympy.exp(x), x), sympy.factor(x**4 - 1))
print(numpy.linalg.solve([[2.0, 1.0], [1.0, 3.0]], [3.0, 5.0]), numpy.random.default_rng(7).random())
kept = [bytes(size) for size in range(1, 3000, 7)] * 3 + [object() for _ in range(3000)]
del kept[::2]
print(sum(map(sys.getsizeof, kept)), hash((1, 2.5)))
"""


async def test_a_forked_program_sees_what_one_in_a_fresh_interpreter_does(pools: Pools, tmp_path: Path):
    image = Image()
    (tmp_path / "main.py").write_text(AS_IN_A_FRESH_INTERPRETER)
    environment = {"LD_LIBRARY_PATH": str(image.prefix / "lib"), "PYTHONPATH": str(image.libraries), **THREADS}
    plain = await asyncio.create_subprocess_exec(
        image.executable, tmp_path / "main.py", env=environment, stdout=asyncio.subprocess.PIPE
    )
    pool = pools()
    ours = [await run(pool, AS_IN_A_FRESH_INTERPRETER) for _ in range(2)]
    shown, _ = await plain.communicate()
    assert [(one.status, one.stdout, one.stderr) for one in ours] == [("success", shown.decode(), "")] * 2


async def test_a_library_that_can_not_be_imported_is_named_and_done_without(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(env.zygotes.preload.WARM_UPS, "mpmath", "raise ImportError('no such thing')")
    bundle.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert (await run(pools(), "import mpmath; 1")).stdout == "1\n"
        assert "mpmath" in caplog.text and "no such thing" in caplog.text
    finally:
        bundle.cache_clear()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_without_cgroups_limits_of_processes_stand_in_and_this_is_said(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, isolation: IsolationKind
):
    monkeypatch.setattr(cgroup_hierarchy, "find_hierarchy", lambda: None)
    pool = pools(isolation=isolation)
    assert (await run(pool, "x = bytearray(600 << 20)")).status == "memory"
    assert (await run(pool, "import os\nwhile True: os.fork()")).status == "error"
    result = await run(pool, "x = bytearray(30 << 20)")
    assert result.status == "success" and 30 << 20 <= result.peak_memory_bytes < 100 << 20
    assert (await pool.isolation()).weaknesses[0].startswith(NO_CGROUP)


async def test_with_one_user_for_all_calls_signals_to_init_do_not_reach_what_shares_its_memory(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
):
    """Init has the warden's handlers: Python's own, for SIGINT, ended the warden, and with it the jail."""
    monkeypatch.setattr(env.zygotes, "block_for", lambda _: ONE)
    pool = pools()
    await run(pool, "1")
    before = children_of_this_process()
    signals = "import os, time\nfor number in range(1, 65):\n  try: os.kill(1, number)\n  except OSError: pass\n"
    result = await run(pool, f"{signals}time.sleep(0.2)\nprint('still here')")
    assert (result.status, result.stdout) == ("success", "still here\n")
    assert (await run(pool, "print(1)")).stdout == "1\n"
    assert children_of_this_process() == before, "the jail is the same"


async def test_with_one_user_for_all_calls_this_is_said(pools: Pools, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(env.zygotes, "block_for", lambda _: ONE)
    pool = pools()
    result = await run(pool, "open('x', 'w').write('y'); open('/usr/x', 'w')")
    assert (result.status, result.exit_code) == ("error", 1)
    assert ONE_USER in (await pool.isolation()).weaknesses
