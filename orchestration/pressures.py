"""Faults that hold for some time: processes made slow, a sandbox without memory, a file system without room.

Invariants:
- a pressure is kept up until its task is cancelled or its target is gone; after that all is as it was before;
- `felt` is set when it has been seen to hit, and `figures` say what it did so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Protocol

import psutil

from actors.system.actor_faults import SLOW_TURN_S
from env.jail_processes import below
from env.shortage import MemoryShortage, NoSandbox
from orchestration.run_folder import RECIPE_FILE

LOOK_S = 0.05
FILLER = "drill-filler"
_PIECES = (64 << 20, 1 << 20, 4 << 10)
"""Bytes that are asked for at once: of the next smaller ones when there is no room for more of these."""


class Pressure(Protocol):
    """Something that is done all the time while it lasts."""

    felt: bool
    figures: dict[str, float]
    """By what they count; always the same dictionary."""

    async def keep_up(self) -> None:
        """Until it is cancelled, or has nobody left to be done to."""
        ...


class Slowness:
    """Processes and all below them run for one part in `times` of each turn, and are stopped for the rest.

    What somebody else has stopped is left alone.
    """

    def __init__(self, roots: Callable[[], Iterable[int]], times: float, stopped_by_others: Container[int]) -> None:
        """`roots` are looked up at each turn, and there may come to be others; none means that it is over."""
        self._roots, self._stop_s = roots, SLOW_TURN_S * (1 - 1 / times)
        self._others = stopped_by_others
        self._stopped: list[psutil.Process] = []
        self._began = self._since = time.monotonic()
        self._still_s, self._turns, self._most = 0.0, 0, 0
        self.felt = False
        self.figures: dict[str, float] = {}

    async def keep_up(self) -> None:
        try:
            while roots := set(self._roots()):
                self._stop(roots)
                await asyncio.sleep(self._stop_s / 2)
                self._look(roots)
                await asyncio.sleep(self._stop_s / 2)
                self._go_on()
                await asyncio.sleep(SLOW_TURN_S - self._stop_s)
        finally:
            self._go_on()

    def _stop(self, roots: set[int]) -> None:
        self._since = time.monotonic()
        for pid in [pid for root in roots for pid in (root, *below(root))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    process.send_signal(signal.SIGSTOP)
                    self._stopped.append(process)

    def _look(self, roots: set[int]) -> None:
        seen = [process for process in self._stopped if _is_stopped(process)]
        if roots & {process.pid for process in seen}:
            self.felt = True
            self._turns, self._most = self._turns + 1, max(self._most, len(seen))

    def _go_on(self) -> None:
        if not self._stopped:
            return
        for process in reversed(self._stopped):  # children first: what their parents stop then is to stay so
            if process.pid not in self._others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)
        self._stopped.clear()
        now = time.monotonic()
        self._still_s += now - self._since
        whole_s = now - self._began + SLOW_TURN_S - self._stop_s
        share = round(100 * self._still_s / whole_s)
        self.figures |= {"turns": self._turns, "processes": self._most, "percent of the time stopped": share}


class Squeeze:
    """The sandbox below an environment gets no more memory than it has when the kernel first kills in it."""

    def __init__(self, environment: int) -> None:
        """`environment` is the pid of one."""
        self._environment = environment
        self.felt = False
        self.figures: dict[str, float] = {}

    async def keep_up(self) -> None:
        with contextlib.suppress(NoSandbox), MemoryShortage.of(self._environment) as shortage:
            while psutil.pid_exists(self._environment):
                now = {"killed": shortage.killed(), "times refused": shortage.refused()}
                self.figures |= {what: max(count, self.figures.get(what, 0)) for what, count in now.items()}
                self.felt = self.felt or min(now.values()) > 0
                if not self.felt:
                    shortage.tighten()
                await asyncio.sleep(LOOK_S)


class FullDisk:
    """All room of the file system that a run's folder is on is taken, and what others give back is taken too."""

    def __init__(self, folder: Path) -> None:
        self._filler = own_file_system(folder) / FILLER
        self.felt = False
        self.figures: dict[str, float] = {}

    async def keep_up(self) -> None:
        with self._filler.open("wb") as file:
            self._filler.unlink()  # it goes when it is closed, however this process ends
            taken = 0
            while True:
                for piece in _PIECES:
                    while _allocated(file.fileno(), taken, piece):
                        taken += piece
                        await asyncio.sleep(0)
                self.figures |= {"MiB taken": taken >> 20, "bytes left": _room(file.fileno())}
                self.felt = self.felt or self.figures["bytes left"] < _PIECES[-1]
                await asyncio.sleep(LOOK_S)


def own_file_system(run: Path) -> Path:
    """Where the file system is mounted that holds nothing but a run, or runs. Raises `ValueError` if there is none."""
    run = run.resolve()
    if os.path.ismount(run):
        return run
    if os.path.ismount(run.parent):
        others = {each.name for each in run.parent.iterdir()} - {run.name, "lost+found"}
        if all((run.parent / name / RECIPE_FILE).exists() for name in others):
            return run.parent
    raise ValueError(
        f"{run} is on a file system that others use, too, which a drill does not fill; mount one for runs alone "
        "(mount -t tmpfs -o size=1g tmpfs RUNS), and name it by --runs"
    )


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _allocated(descriptor: int, offset: int, length: int) -> bool:
    """Whether there was room for so many bytes more."""
    try:
        os.posix_fallocate(descriptor, offset, length)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def _room(descriptor: int) -> int:
    """Bytes that may still be written to the file system of an open file."""
    of = os.fstatvfs(descriptor)
    return of.f_bavail * of.f_frsize
