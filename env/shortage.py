"""Takes memory from the sandbox of a process, for drills: all that its calls and zygotes do not have already.

What happens then is what happens on a machine whose memory is used up: the kernel refuses a program what it may have,
and kills.

Invariants:
- nothing but the limit of the cgroup that a process's calls have above them is changed (`env.cgroups` sets none there);
- when the block of `MemoryShortage.of` is left, there is no limit again, unless this process has another one there.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from env import cgroup_hierarchy, cgroups


class NoSandbox(LookupError):
    """The process has no calls in cgroups, or they have been removed meanwhile."""


class MemoryShortage:
    """Of the sandbox of one process on this host.

    Example:
        with MemoryShortage.of(pid) as shortage:
            while not shortage.killed():
                shortage.tighten()
                time.sleep(0.05)
    """

    _lasting: ClassVar[Counter[Path]] = Counter()
    """By folder, how many there are now."""

    def __init__(self, version: int, folder: Path) -> None:
        """`folder` is the cgroup above those of the process's calls."""
        self._folder, v1 = folder, version == 1
        self._limit = folder / ("memory.limit_in_bytes" if v1 else "memory.max")
        self._usage = folder / ("memory.usage_in_bytes" if v1 else "memory.current")
        self._no_limit = "-1" if v1 else "max"
        self._kills = "memory.oom_control" if v1 else "memory.events.local"
        self._refusals = folder / ("memory.failcnt" if v1 else "memory.events.local")
        self._killed_before, self._refused_before = self._all_kills(), self._all_refusals()
        self._set_bytes: int | None = None

    @classmethod
    @contextmanager
    def of(cls, pid: int) -> Iterator[MemoryShortage]:
        """Of the sandbox of a process, until the block is left. Raises `NoSandbox`."""
        hierarchy = cgroup_hierarchy.find_hierarchy()
        found = list((hierarchy.memory / cgroup_hierarchy.FOLDER).glob(f"*@{pid}-*")) if hierarchy is not None else []
        if hierarchy is None or not found:
            raise NoSandbox(f"process {pid} has no calls in cgroups")
        shortage = cls(hierarchy.version, found[0])
        cls._lasting[found[0]] += 1
        try:
            yield shortage
        finally:
            cls._lasting[found[0]] -= 1
            if not cls._lasting[found[0]]:
                del cls._lasting[found[0]]
                shortage._lift()

    def tighten(self) -> None:
        """Let the sandbox have no more than it has now. Raises `NoSandbox` if it is gone."""
        used = int(_said(self._usage))
        if self._set_bytes is not None and used >= self._set_bytes:
            return
        try:
            self._limit.write_text(str(used))
            self._set_bytes = used
        except FileNotFoundError:
            raise NoSandbox(f"{self._folder} was removed") from None
        except OSError as error:
            if error.errno != errno.EBUSY:  # on v1: it has taken more meanwhile
                raise

    def killed(self) -> int:
        """Processes that the kernel has killed in it since this was made."""
        return self._all_kills() - self._killed_before

    def refused(self) -> int:
        """How often it was refused memory since this was made. Raises `NoSandbox` if it is gone."""
        return self._all_refusals() - self._refused_before

    def _all_kills(self) -> int:
        return sum(map(_kills, [self._folder / self._kills, *self._folder.glob(f"*/{self._kills}")]))

    def _all_refusals(self) -> int:
        return cgroups.refusals(_said(self._refusals))

    def _lift(self) -> None:
        try:
            self._limit.write_text(self._no_limit)
        except FileNotFoundError:
            pass  # its process has ended


def _said(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):  # ENODEV: removed while it was open
            raise
        raise NoSandbox(f"{file.parent} was removed") from None


def _kills(events: Path) -> int:
    try:
        return cgroups.counts(_said(events)).get(b"oom_kill", 0)
    except NoSandbox:
        return 0  # of a call that is over
