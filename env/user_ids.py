"""Ids of users that own nothing, for jails whose calls each run as a user of their own.

Invariant: an id given here is never that of the host's root or of this process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
BLOCK = 1024
"""Ids of one jail: 0 for its zygotes, the rest for calls, in turn."""
BLOCKS = 64
"""Of one process, as long as its jails are no more than that; the last is for the jail of its sessions."""
_WINDOW = range(1 << 29, 3 << 29)
"""Where a host with all ids has neither people, nor services, nor (usually) containers."""


@dataclass(frozen=True)
class UserIds:
    """A block of ids as this process sees them, from `outside` on.

    In the jail they start at 0; one alone is nobody's there.
    """

    outside: int
    count: int


def block_for(
    number: int, users: Path = Path("/proc/self/uid_map"), groups: Path = Path("/proc/self/gid_map")
) -> UserIds:
    """A block for this process's jail `number`; one id (nobody's for root, else our own) if there are too few.

    Processes choose blocks by their pid, so that two of them seldom share one. (If they do, limits on processes
    that count by user are shared too; nothing else is.)
    """
    if os.geteuid() != 0:
        return UserIds(os.geteuid(), 1)
    free = _free_range(users), _free_range(groups)
    start, stop = max(ids.start for ids in free), min(ids.stop for ids in free)
    blocks = (stop - start) // BLOCK
    if blocks < 1:
        return UserIds(NOBODY, 1)
    return UserIds(start + (os.getpid() * BLOCKS + number) % blocks * BLOCK, BLOCK)


def _free_range(path: Path) -> range:
    """The ids above 0 that a map (user_namespaces(7)) lets us hand on: those in the window, or the longest row."""
    rows = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    rows = [range(max(1, inside), inside + count) for inside, _, count in rows]
    for row in rows:
        if row.start <= _WINDOW.start and _WINDOW.stop <= row.stop:
            return _WINDOW
    return max(rows, key=len, default=range(0))
