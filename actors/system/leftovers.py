"""The folder and the processes of a local Ray session: named so that whoever comes later can tell if they are orphans.

Invariants:
- Ray's servers and what actors start carry the path of the session's folder in the environment variable
  `GREENROOM_SESSION`; Ray's Python processes overwrite theirs (they set their titles), but hold logs in it open;
- a folder's name holds the pid and the start time of the process that owns it, so that a reused pid is not mistaken
  for a living owner;
- paths of sockets in the folder stay below the 107 bytes that Linux allows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

SESSION_VARIABLE = "GREENROOM_SESSION"
_PATTERN = re.compile(r"^gr-(\d+)-(\d+)-")
BURIALS = 50
"""How often a session's end is tried, a tenth of a second apart."""
_LONGEST_BASE = 12
"""Bytes of a base folder's path that leave room for Ray's own `session_DATE_PID/sockets/plasma_store`."""


def make_session_folder() -> Path:
    """A private folder for a Ray session of this process."""
    me = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"gr-{me}-{_start_ticks(me)}-", dir=_base()))


def owner_of_session(folder: Path) -> int:
    """Pid of the process that made the folder."""
    match = _PATTERN.match(folder.name)
    assert match is not None, f"{folder} is not a session's folder"
    return int(match[1])


def session_processes(folder: Path) -> list[psutil.Process]:
    """The processes of a session that run still, and their descendants; this one excepted."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid != os.getpid() and _belongs(process, folder):
                found[process.pid] = process
                found.update((child.pid, child) for child in process.children(recursive=True))
    return _running(found.values())


def _belongs(process: psutil.Process, folder: Path) -> bool:
    if process.environ().get(SESSION_VARIABLE) == str(folder):
        return True
    return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def bury_session(folder: Path, processes: Iterable[psutil.Process] = (), patience_s: float = 1.0) -> None:
    """Wait until `processes` and those of the session have gone, kill those that stay, and delete the folder.

    While that can't be deleted, somebody writes to it who could not be seen a moment ago (a process that is just being
    started has neither environment nor files): all is done again. In the end the log says that it is there still.
    """
    processes = {process.pid: process for process in (*processes, *session_processes(folder))}.values()
    psutil.wait_procs(_running(processes), timeout=patience_s)
    for _ in range(BURIALS):
        left = _running({*processes, *session_processes(folder)})
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return
        time.sleep(0.1)
    logger.warning("%s could not be deleted: it is of a Ray session that is over", folder)


def sweep_leftovers() -> list[Path]:
    """End and delete the sessions of drivers that died without cleaning up; returns their folders."""
    swept = []
    for folder in Path(_base()).glob("gr-*-*-*"):
        match = _PATTERN.match(folder.name)
        if match is not None and _is_ours(folder) and _start_ticks(int(match[1])) != int(match[2]):
            bury_session(folder, patience_s=0.0)
            swept.append(folder)
    return swept


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except FileNotFoundError:  # another run has ended, or sweeps, too
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    running = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def _base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) <= _LONGEST_BASE else "/tmp"


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 if there is none of that pid."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    return int(line.rpartition(")")[2].split()[19])
