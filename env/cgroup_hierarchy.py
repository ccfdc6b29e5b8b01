"""Where this process may make cgroups, and if nowhere, why; and what memory those it is in leave it.

Sources: mount namespaces and cgroups as proc_pid_mountinfo(5), proc_pid_cgroup(5) and cgroups(7) describe them; the
kernel's cgroup-v2.rst on delegation and on "no internal processes"; systemd-run(1) for what users get.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = "greenroom"
MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
_NEEDED = frozenset(("memory", "pids"))
_NO_LIMIT = 1 << 60
"""Bytes; v1 has a number of pages near 2^63 for none."""


@dataclass(frozen=True)
class Hierarchy:
    """Where cgroups can be made: one directory on v2, one for each controller on v1."""

    version: int
    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.memory,) if self.memory == self.pids else (self.memory, self.pids)


def find_hierarchy(mounts: Path = MOUNTS, own: Path = OWN) -> Hierarchy | None:
    """The topmost place at which this process may make cgroups with memory and pids limits."""
    roots = _roots(mounts)
    if roots.keys() >= _NEEDED:
        found = {c: _first_usable_v1(roots[c], _own_path(own, c)) for c in _NEEDED}
        if found["memory"] and found["pids"]:
            return Hierarchy(1, found["memory"], found["pids"])
    if "" in roots:
        place = _first_usable_v2(roots[""], _own_path(own, ""))
        if place is not None:
            return Hierarchy(2, place, place)
    return None


def obstacle(mounts: Path = MOUNTS, own: Path = OWN) -> str:
    """Why there is no hierarchy, and what would help where that is known; where `find_hierarchy` has found none."""
    roots = _roots(mounts)
    if roots.keys() >= _NEEDED:
        return f"in {roots['memory']} and {roots['pids']} only the machine's root may"
    if "" not in roots:
        return "no cgroup file system with memory and pids controllers is mounted"
    *_, place = _ancestors(roots[""], _own_path(own, ""))
    try:
        controllers = set((roots[""] / "cgroup.controllers").read_text().split())
        read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError as error:
        return f"{place} can't be read: {error.strerror}"
    if not controllers >= _NEEDED:
        return f"{roots['']} lacks the controllers {', '.join(sorted(_NEEDED - controllers))}"
    if read_only:
        return f"{place} is mounted read-only; a container that is to have cgroups needs it writable"
    if os.access(place / "cgroup.procs", os.W_OK):
        return (
            f"{place} holds processes, so what is made in it gets no limits; before the start, move them: "
            f"`cd {place}; mkdir -p init; while read p; do echo $p > init/cgroup.procs; done < cgroup.procs`"
        )
    return f"{place} is not this user's; systemd gives one to what is started by `systemd-run --user --scope`"


def memory_left(mounts: Path = MOUNTS, own: Path = OWN) -> int | None:
    """Bytes that the cgroups which hold this process leave it, by their limits; None where they set none.

    A container's memory is limited by its cgroup, whatever the machine has. What is cached of files counts as free, as
    it does for the machine (MemAvailable in proc(5)): it is dropped before anybody is killed.
    """
    return _least_left("memory", _memory_left_in, mounts, own)


def tasks_left(mounts: Path = MOUNTS, own: Path = OWN) -> int | None:
    """Processes and threads that the cgroups which hold this process leave it; None where they set no limit."""
    return _least_left("pids", _tasks_left_in, mounts, own)


def _least_left(controller: str, left_in: Callable[[Path], int | None], mounts: Path, own: Path) -> int | None:
    roots = _roots(mounts)
    if controller not in roots:
        controller = ""  # v2 has all of them in one place
    if controller not in roots:
        return None
    left = [left_in(place) for place in _ancestors(roots[controller], _own_path(own, controller))]
    return min((each for each in left if each is not None), default=None)


def _memory_left_in(place: Path) -> int | None:
    v1 = (place / "memory.limit_in_bytes").exists()
    limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    cached = ("total_active_file", "total_inactive_file") if v1 else ("active_file", "inactive_file")
    if (used := _used(place / limit, place / usage)) is None:
        return None
    figures = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    return max(0, used[0] - used[1] + sum(int(figures[each]) for each in cached))


def _tasks_left_in(place: Path) -> int | None:
    used = _used(place / "pids.max", place / "pids.current")
    return None if used is None else max(0, used[0] - used[1])


def _used(limit: Path, usage: Path) -> tuple[int, int] | None:
    """A limit, and what is used of it; None if there is no limit."""
    try:
        most = limit.read_text().strip()
        return None if most == "max" or int(most) >= _NO_LIMIT else (int(most), int(usage.read_text()))
    except OSError:
        return None  # v2's root has no limit; or the file is not for us to read


def _roots(mounts: Path) -> dict[str, Path]:
    """Mounts by controller (v1), and that of v2 by the empty string; of each the first."""
    roots: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        place = Path(fields.split()[4])
        if kind == "cgroup2":
            roots.setdefault("", place)
        elif kind == "cgroup":
            for controller in _NEEDED & set(options.replace(" ", ",").split(",")):
                roots.setdefault(controller, place)
    return roots


def _own_path(own: Path, controller: str) -> str:
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            return path.strip("/")
    return ""


def _ancestors(root: Path, path: str) -> Iterator[Path]:
    """From the mount's root down to our own cgroup: the higher ones are the same for the next run, which sweeps."""
    yield root
    for part in Path(path).parts:
        root = root / part
        if root.is_dir():
            yield root


def _first_usable_v1(root: Path, path: str) -> Path | None:
    return next((place for place in _ancestors(root, path) if _can_make_in(place)), None)


def _first_usable_v2(root: Path, path: str) -> Path | None:
    for place in _ancestors(root, path):
        if delegates(place) and _can_make_in(place) and delegates(place / FOLDER):
            return place
    return None


def delegates(place: Path) -> bool:
    """Whether children of a v2 cgroup get the memory and pids controllers; asks for it where it is not so."""
    control = place / "cgroup.subtree_control"
    try:
        if set(control.read_text().split()) >= _NEEDED:
            return True
        control.write_text("+memory +pids")
        return True
    except OSError:
        return False  # EBUSY: it holds processes itself; EACCES: not ours; ENOENT: no such controller


def _can_make_in(place: Path) -> bool:
    try:
        (place / FOLDER).mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(place / FOLDER, os.W_OK)
