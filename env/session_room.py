"""What a session's process lives in, whichever way it was made; and what every way needs.

Invariant: a room is gone when its init is: the kernel ends everything else in it first.
"""

from __future__ import annotations

import functools
import marshal
import os
import signal
from pathlib import Path
from typing import Protocol

from env import runner, session_server
from env.cgroups import Slot
from env.jail import compiled
from env.jail_link import Link
from env.jail_processes import below, kill
from env.streams import Stream
from env.tool_call import Limits

KEEPER = 1
"""Processes of a room, besides init, that are not the session's: see `env.session_server`."""


class Room(Protocol):
    """Namespaces, scratch directory and limits of one session."""

    init: int
    """Pid of its first process, as the host sees it; known once a process was admitted."""
    init_pidfd: int
    """-1 until then."""
    slot: Slot | None
    """Its cgroup, if this host has any."""

    def admit(self, pid: int) -> None:
        """Put a process that was made for the room under its limits; what it starts inherits them."""
        ...

    def begin_cell(self) -> None:
        """Start the books of its cgroup anew."""
        ...

    def kill(self) -> None:
        """End everything in it, now."""
        ...

    async def end(self) -> str:
        """`kill`, wait until nothing is left, and give everything back. Returns what the jail had to say."""
        ...


class Rooms(Protocol):
    """A way to make rooms."""

    async def open(self, limits: Limits, named: bytes, link: Link, out: Stream, err: Stream) -> Room:
        """A room with these limits, in which `env.session_server` starts, with `link.theirs` to talk over.

        `named` is code by whose names it is decided which libraries are in memory already. Both streams' writers and
        `link.theirs` are closed afterwards. Raises `OSError` if the host can't make one now.
        """
        ...

    async def close(self) -> None:
        """Give back what rooms share; all of them have ended."""
        ...


@functools.cache
def server_program(*, detach: bool) -> bytes:
    """A program that turns its process into a session's: `env.session_server`, and what that imports."""
    codes = [compiled(runner), compiled(session_server)]
    return (
        b"import marshal,sys;r,s=marshal.loads(%r);n=type(sys);p=n('env');m=p.runner=n('env.runner');"
        b"exec(r,m.__dict__);sys.modules.update({'env':p,'env.runner':m});q=n('env.session_server');"
        b"exec(s,q.__dict__);del sys.modules['env'],sys.modules['env.runner'];q.serve(%r)"
    ) % (marshal.dumps(codes), detach)


def signal_all(init: int, number: signal.Signals) -> None:
    """Send a signal to everything in a room but its init, also to what is started meanwhile."""
    reached: set[int] = set()
    while fresh := set(below(init)) - reached:
        for pid in fresh:
            kill(pid, number)
        reached |= fresh


def resident_bytes(init: int) -> int:
    """Memory of everything in a room but its init, without what is shared (proc_pid_statm(5))."""
    total = 0
    for pid in below(init):
        try:
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return total
