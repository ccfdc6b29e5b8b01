"""Takes memory from the sandbox of a process, for drills: all that its calls and zygotes do not have already.

What happens then is what happens on a machine whose memory is used up: the kernel refuses a program what it may have,
and kills.

Invariants:
- nothing but the limit of the cgroup that a process's calls have above them is changed (`env.cgroups` sets none there);
- `lift` takes the limit away again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from env import cgroups


class MemoryShortage:
    """Of the sandbox of one process on this host.

    Example:
        with MemoryShortage.of(pid) as shortage:
            while not shortage.killed():
                shortage.tighten()
                time.sleep(0.05)
    """

    def __init__(self, version: int, folder: Path) -> None:
        """`folder` is the cgroup above those of the process's calls."""
        self._folder, v1 = folder, version == 1
        self._limit = folder / ("memory.limit_in_bytes" if v1 else "memory.max")
        self._usage = folder / ("memory.usage_in_bytes" if v1 else "memory.current")
        self._no_limit = "-1" if v1 else "max"
        self._kills = "memory.oom_control" if v1 else "memory.events.local"
        self._refusals = os.open(folder / ("memory.failcnt" if v1 else "memory.events.local"), os.O_RDONLY)
        self._before = self._all_kills(), cgroups.refusals(self._refusals)
        self.limit_bytes: int | None = None
        """What was set last."""

    @classmethod
    @contextmanager
    def of(cls, pid: int) -> Iterator[MemoryShortage]:
        """Of the sandbox of a process, until the block is left. Raises `LookupError` if it has none in a cgroup."""
        hierarchy = cgroups.find_hierarchy()
        found = list((hierarchy.memory / cgroups.FOLDER).glob(f"*@{pid}-*")) if hierarchy is not None else []
        if hierarchy is None or not found:
            raise LookupError(f"process {pid} has no calls in cgroups")
        try:
            shortage = cls(hierarchy.version, found[0])
        except FileNotFoundError:
            raise LookupError(f"the sandbox of process {pid} is gone") from None
        try:
            yield shortage
        finally:
            shortage._lift()

    def tighten(self) -> None:
        """Let the sandbox have no more than it has now. Raises `FileNotFoundError` if it is gone."""
        used = int(self._usage.read_text())
        if self.limit_bytes is not None and used >= self.limit_bytes:
            return
        try:
            self._limit.write_text(str(used))
            self.limit_bytes = used
        except FileNotFoundError:
            raise
        except OSError:
            pass  # EBUSY, on v1: it has taken more meanwhile

    def killed(self) -> int:
        """Processes that the kernel has killed in it since then."""
        return self._all_kills() - self._before[0]

    def refused(self) -> int:
        """How often it was refused memory since then."""
        return cgroups.refusals(self._refusals) - self._before[1]

    def _all_kills(self) -> int:
        return sum(map(_kills, [self._folder / self._kills, *self._folder.glob(f"*/{self._kills}")]))

    def _lift(self) -> None:
        os.close(self._refusals)
        try:
            self._limit.write_text(self._no_limit)
        except FileNotFoundError:
            pass  # its process has ended


def _kills(events: Path) -> int:
    try:
        return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])
    except OSError:
        return 0  # it was removed as we came to it
