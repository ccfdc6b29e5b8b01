"""Processes of jails, as the host sees them: signalled, watched, reaped.

Invariants:
- a process that is gone already is no error to anybody who wants it gone;
- a pidfd names one process for ever; a pid may come to mean another one.

Sources: pidfd_open(2), pid_namespaces(7), proc_pid_stat(5), proc_pid_status(5).
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path

STARTS_WITHIN_S = 30.0
"""A jail, zygote or program that is not ready by then has failed (the machine may be very busy)."""
ENDS_WITHIN_S = 2.0
"""How long what was killed may take before what is above it is killed."""
_NUDGE_S = 0.05
_PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat (include/linux/sched.h)."""
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


def send(pidfd: int, number: int) -> None:
    """Send a signal, if the process is there."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that we only have the number of, if it is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def set_out_of_memory_score(pid: int, score: int) -> None:
    """proc_pid_oom_score_adj(5); without effect where we may not, or if the process is gone."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"%d" % score)
    except OSError:
        pass  # a call out of memory may then cost its zygote, which is replaced


def children_of(pid: int, thread: int | None = None) -> list[int]:
    """Direct children of a process that has one thread, or those that one of its threads has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{thread or pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(pid: int) -> list[int]:
    """All that a process has started, and what those have, parents first; without what comes or goes while we look."""
    found: list[int] = []
    pending = [pid]
    while pending:
        one = pending.pop()
        try:
            threads = os.listdir(f"/proc/{one}/task")
        except (FileNotFoundError, ProcessLookupError):
            continue
        children = [child for thread in threads for child in children_of(one, int(thread))]
        found += children
        pending += children
    return found


def pid_of(pidfd: int) -> int:
    """-1 when the process has been reaped."""
    fields = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
    return int(fields[fields.index("Pid:") + 1])


def is_ending(pidfd: int) -> bool:
    """Whether a process has ended, is on its way out, or has been killed and does not know it yet.

    The first process of a namespace says nothing more then, but waits until its namespace is empty.
    """
    pid = pid_of(pidfd)
    try:
        status = Path(f"/proc/{pid}/status").read_text().split()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = [int(status[status.index(f"{name}:") + 1], 16) for name in ("SigPnd", "ShdPnd")]
    flags = int(stat.rpartition(")")[2].split()[6])
    return any(signals & _SIGKILL_BIT for signals in pending) or bool(flags & _PF_EXITING)


async def ended(pidfd: int) -> None:
    """Wait until a process has ended."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(pidfd)


def reap(pid: int) -> resource.struct_rusage | None:
    """Wait for a child of ours that has ended or is about to; returns what it and its own children used."""
    try:
        return os.wait4(pid, 0)[2]
    except ChildProcessError:
        return None  # somebody ignores SIGCHLD in this process: the kernel has reaped it


def hurry_nsjail(pidfd: int) -> list[asyncio.TimerHandle]:
    """nsjail ends when its child has, but sometimes sleeps through that: wake it soon, and kill it if that is no help.

    The timers are to be cancelled before `pidfd` is closed.
    """
    loop = asyncio.get_running_loop()
    return [
        loop.call_later(_NUDGE_S, send, pidfd, signal.SIGCHLD),
        loop.call_later(ENDS_WITHIN_S, send, pidfd, signal.SIGKILL),
    ]
