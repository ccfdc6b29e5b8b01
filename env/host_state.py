"""What the sandbox has on the host, for telling whether something was left behind.

Invariant: whatever is not the sandbox's (other children of the process, other runs' cgroups) is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import psutil

from env import cgroup_hierarchy

Role = Literal["jail", "init", "zygote", "program"]


@dataclass(frozen=True, slots=True)
class SandboxProcess:
    """A process that the sandbox made."""

    pid: int
    role: Role
    """`jail`: nsjail itself. `init`: the first process of a PID namespace, with which all others in it end.
    `zygote`: one that has kept rights within its jail, which programs never do."""


def sandbox_processes(root: int | None = None) -> list[SandboxProcess]:
    """Those among the descendants of a process (this one by default), by what the kernel says of them."""
    return list(_sandbox_processes(os.getpid() if root is None else root))


def _sandbox_processes(root: int) -> Iterator[SandboxProcess]:
    try:
        descendants = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            program = os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # it has ended, or is about to
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        numbers = fields.get("NSpid", "").split()
        if program.startswith("nsjail") and len(numbers) == 1:
            yield SandboxProcess(process.pid, "jail")
        elif len(numbers) > 1 and numbers[-1] == "1":
            yield SandboxProcess(process.pid, "init")
        elif len(numbers) > 1:  # those of rooms are one namespace further in than zygotes
            is_zygote = len(numbers) == 2 and int(fields["CapEff"], 16) != 0
            yield SandboxProcess(process.pid, "zygote" if is_zygote else "program")


@dataclass(frozen=True)
class HostState:
    """A look at the host. Two looks are equal if nothing came or went in between."""

    processes: frozenset[int]
    mounts: tuple[str, ...]
    cgroups: frozenset[str]
    descriptors: int
    """Open ones of this process, without those that are kept for later calls (a bounded number)."""

    @classmethod
    def now(cls) -> HostState:
        return cls(
            processes=frozenset(process.pid for process in sandbox_processes()),
            mounts=tuple(Path("/proc/self/mountinfo").read_text().splitlines()),
            cgroups=frozenset(cgroups_of(os.getpid())),
            descriptors=sum(1 for _ in _descriptors()),
        )

    def differences(self, later: HostState) -> dict[str, tuple[object, object]]:
        """What differs in a later look: name -> (before, after)."""
        pairs = {field.name: (getattr(self, field.name), getattr(later, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def cgroups_of(pid: int) -> Iterator[str]:
    """The cgroups that a process made for its calls, whether it lives still or not."""
    hierarchy = cgroup_hierarchy.find_hierarchy()
    for folder in hierarchy.folders if hierarchy else ():
        for path in (folder / cgroup_hierarchy.FOLDER).glob(f"*@{pid}-*/*"):
            if path.is_dir():
                yield str(path)


_KEPT = ("/memfd:greenroom-", "/dev/null")
_OF_ONE_CALL = ("/memfd:greenroom-code", "/memfd:greenroom-input")


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one with which the directory was listed
        if not target.startswith(_KEPT) or target.startswith(_OF_ONE_CALL):
            yield name
