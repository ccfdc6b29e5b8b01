"""What holds for some time, on real processes and a real file system; memory: tests/env/test_shortage.py."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from orchestration.pressures import FILLER, FullDisk, Pressure, Slowness, own_file_system
from orchestration.run_folder import RECIPE_FILE
from tests.support.waiting import until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
child.wait()
"""


@asynccontextmanager
async def under(pressure: Pressure) -> AsyncIterator[None]:
    """Once it is felt."""
    task = asyncio.create_task(pressure.keep_up())
    try:
        await until(lambda: pressure.felt or task.done())
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def family() -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A process and its child."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        yield psutil.Process(parent.pid), child
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
        parent.kill()
        parent.communicate()


def stopped(*processes: psutil.Process) -> list[bool]:
    return [process.status() == psutil.STATUS_STOPPED for process in processes]


async def test_a_slow_process_and_its_children_stop_and_go_on_in_turns(family) -> None:
    parent, child = family
    slowness = Slowness(lambda: [parent.pid], 8, {})
    async with under(slowness):
        for turn in range(2):
            await until(lambda: stopped(parent, child) == [True, True])
            await until(lambda: stopped(parent, child) == [False, False])
            assert slowness.figures["turns"] > turn
        assert slowness.figures["processes"] == 2
        assert 0 < slowness.figures["percent of the time stopped"] < 100
        await until(lambda: stopped(parent, child) == [True, True])
    assert stopped(parent, child) == [False, False]


async def test_what_somebody_else_has_stopped_stays_so(family) -> None:
    parent, child = family
    child.suspend()  # before
    await until(lambda: stopped(child) == [True])
    others: set[int] = set()
    slowness = Slowness(lambda: [parent.pid], 2, others)
    async with under(slowness):
        await until(lambda: stopped(parent) == [True])
        others.add(parent.pid)  # meanwhile
    assert stopped(parent, child) == [True, True]
    assert slowness.figures["processes"] == 1


async def test_slowness_is_over_when_its_process_is_gone(family) -> None:
    parent, _ = family
    task = asyncio.create_task(Slowness(lambda: [parent.pid] if psutil.pid_exists(parent.pid) else [], 4, {}).keep_up())
    parent.kill()
    await asyncio.to_thread(parent.wait)
    await task


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small file system for runs, with a run's folder on it."""
    runs = tmp_path / "runs"
    runs.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", runs], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {done.stderr.strip()}")
    run = runs / "run"
    run.mkdir()
    try:
        yield run
    finally:
        subprocess.run(["umount", runs], check=True)


async def test_a_full_disk_takes_nothing_more_until_it_is_over(mounted: Path) -> None:
    (mounted / "held").write_bytes(bytes(100_000))
    disk = FullDisk(mounted)
    async with under(disk):
        with pytest.raises(OSError) as refused:
            (mounted / "file").write_bytes(bytes(8192))
        assert refused.value.errno == errno.ENOSPC
        taken = disk.figures["MiB taken"]
        assert 2 <= taken <= 3 and disk.figures["bytes left"] < 4096
        (mounted / "held").unlink()  # what others give back is taken, too
        room = os.statvfs(mounted).f_bavail
        assert room * os.statvfs(mounted).f_frsize > 50_000
        await until(lambda: os.statvfs(mounted).f_bavail == 0)
    (mounted / "file").write_bytes(bytes(8192))
    assert not (mounted.parent / FILLER).exists()


def test_only_a_file_system_of_runs_alone_is_filled(mounted: Path, tmp_path: Path) -> None:
    assert own_file_system(mounted) == mounted.parent
    assert own_file_system(mounted.parent) == mounted.parent
    other = mounted.parent / "other"
    other.mkdir()
    with pytest.raises(ValueError, match="others use"):
        own_file_system(mounted)
    (other / RECIPE_FILE).touch()  # another run
    assert own_file_system(mounted) == mounted.parent
    for elsewhere in (tmp_path, Path("/not-there")):
        with pytest.raises(ValueError, match=r"others use, too.*mount one for runs alone.*--runs"):
            own_file_system(elsewhere)
