"""What a process does to itself when it becomes an actor's host.

Invariants:
- it dies with the process that made it, and at once on SIGTERM;
- Ctrl-C in the terminal is the driver's affair: the host is not in the terminal's process group;
- environment variables and thread counts are set before anything heavy is imported;
- with a log file, all that it or a library in it prints ends there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys

from actors.system.host import HostSpec
from actors.system.orphans import die_with

_SIG_DFL = 0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def become_host(spec: HostSpec) -> None:
    """Prepare this process for the actor of `spec`. Call it before the actor's class is imported."""
    parent = os.getppid()
    if parent == 1:
        os._exit(1)  # whoever made this process has died already
    die_with(parent)
    # Ray's own handler drains first, and a call to a process that drains is a call into nothing. Through libc, because
    # this is not the main thread.
    ctypes.CDLL(None).signal(signal.SIGTERM, _SIG_DFL)
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(spec.threads)
    os.environ.update(spec.environment)
    if spec.log_file is not None:
        _redirect(spec.log_file)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _redirect(log_file: str) -> None:
    """File descriptors 1 and 2 to the end of `log_file`, line by line."""
    os.makedirs(os.path.dirname(log_file), exist_ok=True)
    sink = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
