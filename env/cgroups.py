"""Memory and process limits of calls, by cgroup v1 or v2, managed from outside the jail.

Invariants:
- one cgroup per slot, made once and reused: making one per call costs more than the call's own bookkeeping;
- a process of a jail is in its cgroup before it can run user code;
- whatever is made here is removed by `close`, or by `sweep` of any later run if this process was killed; the name of
  the directory says whose it is (`<run id>@<pid>-<start time>-<pid namespace>`).

Where no cgroup can be had (`env.cgroup_hierarchy`), resource limits stand in (`env.jail`).
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

from env.cgroup_hierarchy import FOLDER, Hierarchy, delegates
from env.jail_processes import children_of, kill
from env.tool_call import Limits

logger = logging.getLogger(__name__)

OUR_PROCESSES = 4
"""Processes and threads in a slot that are not the program's: nsjail, init, init's watcher, the launching thread."""
OUR_MEMORY = 12 << 20
"""Bytes that nsjail and init use, or zygotes beyond what they had when they were moved in."""
_EMPTY_WITHIN_S = 5.0
_OWNER = re.compile(r"@(?P<pid>\d+)-(?P<started>\d+)-(?P<namespace>\d+)$")
_SWAP = 4 << 20
"""Bytes that a call may have in swap, on v1: more than the kernel asks for at once, so that it is memory's own limit at
which it stops. How often it comes to that of both together is not counted by every kernel (not by 6.18)."""


def _owner_name(run_id: str, pid: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', run_id)}@{pid}-{_start_time(pid)}-{_pid_namespace()}"


def _pid_namespace() -> int:
    """In which pids mean what they mean here (namespaces(7)): containers with other pids may share our cgroups."""
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int:
    """Clock ticks after boot at which a process started; 0 if there is none (proc(5), field 22 of stat)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def _make(base: Path, names: tuple[str, ...], *, delegating: bool) -> Path:
    """Make cgroups in one another below `base`, also while another process removes them because they are empty.

    `delegating` (v2): each must hand on its controllers before one that has them can be made in it.
    """
    folder = base
    for _ in range(100):
        folder = base
        try:
            for name in names:
                if delegating and not delegates(folder) and folder.is_dir():
                    raise OSError(f"cgroup {folder} does not hand on the memory and pids controllers")
                folder = folder / name
                folder.mkdir(exist_ok=True)
            return folder
        except FileNotFoundError:
            continue
    raise OSError(f"cgroup {folder} could not be made: its parent keeps vanishing")


class Slot:
    """The cgroup of one slot: at most one jail at a time."""

    def __init__(self, hierarchy: Hierarchy, run_id: str, name: str) -> None:
        owner = _owner_name(run_id, os.getpid())
        self._version = hierarchy.version
        self._path = f"/{FOLDER}/{owner}/{name}"
        self._memory = hierarchy.memory / FOLDER / owner / name
        self._pids = hierarchy.pids / FOLDER / owner / name
        v1 = self._version == 1
        names = FOLDER, owner, name
        self._folders = tuple(_make(folder, names, delegating=not v1) for folder in hierarchy.folders)
        self._peak = self._kept("memory.max_usage_in_bytes" if v1 else "memory.peak", os.O_RDWR)
        self._usage = self._kept("memory.usage_in_bytes" if v1 else "memory.current", os.O_RDONLY)
        self._events = self._kept("memory.oom_control" if v1 else "memory.events", os.O_RDONLY)
        self._at_limit = self._kept("memory.failcnt", os.O_RDONLY) if v1 else self._events
        self._owner_at_limit = self._kept("../memory.failcnt" if v1 else "../memory.events.local", os.O_RDONLY)
        self._limits: tuple[Limits, int] | None = None
        self._kills_before = 0
        self._refusals_before = (0, 0)
        self._bytes_before = 0

    def _kept(self, name: str, flags: int) -> int:
        """A descriptor for a figure that each call needs; -1 if this kernel does not have it.

        On v2 a peak can be reset for the readers of one descriptor only, so it has to be the same one.
        """
        try:
            return os.open(self._memory / name, flags | os.O_CLOEXEC)
        except OSError:
            return -1

    def enter_thread(self) -> None:
        """On v1, move the calling thread in: its children then start inside, at no cost per call."""
        if self._version == 1:
            for folder in self._folders:
                (folder / "tasks").write_text(str(threading.get_native_id()))

    def add(self, pid: int) -> None:
        """On v2, move a process that was just started in, with the children that it may have by now."""
        if self._version == 2:
            procs = self._memory / "cgroup.procs"
            procs.write_text(str(pid))
            for child in children_of(pid):
                procs.write_text(str(child))

    def move_in(self, pid: int) -> None:
        """Move a whole process in. What it has in memory stays on the books of the cgroup that it comes from."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def prepare(self, limits: Limits, our_processes: int = OUR_PROCESSES) -> None:
        """Set the limits of the next call and start its books; `our_processes` are in here and not the program's."""
        if (limits, our_processes) != self._limits:
            self._set_limits(limits, our_processes)
            self._limits = (limits, our_processes)
        self._reset_peak()
        self._bytes_before = int(self._text(self._usage))
        self._kills_before = self._out_of_memory_kills()
        self._refusals_before = self._refusals()

    def _set_limits(self, limits: Limits, our_processes: int) -> None:
        memory = limits.memory_bytes + OUR_MEMORY
        (self._pids / "pids.max").write_text(str(limits.processes + our_processes))
        if self._version == 2:
            (self._memory / "memory.max").write_text(str(memory))
            self._write_if_there(self._memory / "memory.swap.max", "0")
            return
        self._write_if_there(self._memory / "memory.swappiness", "0")  # at its limit nothing of it is swapped out
        # with swap accounting the sum's limit may never be below the memory's: lift it, set, lower it
        self._write_if_there(self._memory / "memory.memsw.limit_in_bytes", "-1")
        (self._memory / "memory.limit_in_bytes").write_text(str(memory))
        self._write_if_there(self._memory / "memory.memsw.limit_in_bytes", str(memory + _SWAP))

    def _reset_peak(self) -> None:
        if self._peak >= 0:
            try:
                os.pwrite(self._peak, b"0", 0)
            except OSError:
                pass  # a v2 kernel before 6.12: the peak is then that of all calls so far

    @staticmethod
    def _write_if_there(path: Path, text: str) -> None:
        try:
            path.write_text(text)
        except OSError:
            pass  # this kernel does not account for swap

    @staticmethod
    def _text(descriptor: int) -> bytes:
        return os.pread(descriptor, 1024, 0) if descriptor >= 0 else b"0"

    def _out_of_memory_kills(self) -> int:
        return counts(os.pread(self._events, 1024, 0)).get(b"oom_kill", 0)

    def _refusals(self) -> tuple[int, int]:
        """How often memory was refused because this cgroup was at its limit, and because all of our cgroups were."""
        return refusals(self._text(self._at_limit)), refusals(self._text(self._owner_at_limit))

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of this call for memory."""
        return self._out_of_memory_kills() > self._kills_before

    def starved(self) -> bool:
        """Whether this call was killed for memory, or refused it, though it never came to its own limit: the machine
        has none left, or the cgroup that all calls of this process are in.
        """
        own, owner = (now - before for now, before in zip(self._refusals(), self._refusals_before, strict=True))
        return not own and (owner > 0 or self.out_of_memory())

    def peak_bytes(self) -> int:
        """Most memory that the call held at once, as far as the kernel tells."""
        # what an earlier call left is given back a little later: then less is there now than was at the start
        before = min(self._bytes_before, int(self._text(self._usage)))
        return max(0, int(self._text(self._peak)) - before)

    def holds(self, pid: int) -> bool:
        """Whether the kernel charges a process's memory here (proc_pid_cgroup(5)); False if it is gone."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return False
        controller = "memory" if self._version == 1 else ""
        fields = [line.split(":", 2) for line in lines]
        paths = [path for _, controllers, path in fields if controller in controllers.split(",")]
        return any(path.endswith(self._path) for path in paths)

    def held_bytes(self) -> int:
        """Memory that is charged to it now."""
        return int(self._text(self._usage))

    def close(self) -> None:
        """Remove the cgroup; the slot's thread must have ended."""
        for descriptor in {self._peak, self._usage, self._events, self._at_limit, self._owner_at_limit}:
            if descriptor >= 0:
                os.close(descriptor)
        for folder in self._folders:
            _remove(folder)
            _remove_if_empty(folder.parent)
            _remove_if_empty(folder.parent.parent)


def counts(text: bytes) -> dict[bytes, int]:
    """Of a file with a name and a number in each line: v2 `events`, v1 `memory.oom_control`."""
    return {name: int(count) for name, count in map(bytes.split, text.splitlines())}


def refusals(text: bytes) -> int:
    """How often a cgroup was at its limit when memory was asked for, as a `failcnt` or v2 `events` file says."""
    return int(text) if text.strip().isdigit() else counts(text)[b"max"]


def _remove(folder: Path) -> None:
    """Kill what is in a cgroup, and remove it once the kernel lets go of what died there."""
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                logger.warning("cgroup %s could not be removed: %s", folder, error)
                return
        with suppress(FileNotFoundError):  # another run sweeps, too
            for pid in (folder / "cgroup.procs").read_text().split():
                if int(pid) not in (0, os.getpid()):  # 0 is a process of another pid namespace
                    kill(int(pid))
        time.sleep(0.005)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # another run's, or gone


def sweep(hierarchy: Hierarchy) -> int:
    """Remove what processes of this user have left that are dead now, of whichever run; returns how many cgroups."""
    removed = 0
    for base in hierarchy.folders:
        for owner in (base / FOLDER).glob("*@*"):
            with suppress(FileNotFoundError):  # another run sweeps, too
                if _left_behind(owner):
                    for slot in [path for path in owner.iterdir() if path.is_dir()]:
                        _remove(slot)
                        removed += 1
                    _remove_if_empty(owner)
    return removed


def _left_behind(owner: Path) -> bool:
    match = _OWNER.search(owner.name)
    return (
        match is not None
        and int(match["namespace"]) == _pid_namespace()
        and owner.stat().st_uid == os.geteuid()
        and _start_time(int(match["pid"])) != int(match["started"])
    )
