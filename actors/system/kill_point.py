"""Points at which a drill can kill the whole run, by name: a death at a chosen phase, not at a chosen second.

`greenroom train --kill-at decode:3` sets the environment variable of every actor; the actor that reaches the phase for
the third time kills the process that directs the run, then itself, both by SIGKILL. Without the variable nothing is
counted.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Literal, get_args

from actors.system.leftovers import SESSION_VARIABLE, owner_of_session

VARIABLE = "GREENROOM_KILL_AT"
Phase = Literal[
    "demonstrations",  # before a batch of demonstrations is learned from
    "prefill",  # an engine is about to take in prompts
    "decode",  # an engine is about to take a step of decoding alone
    "tool",  # an environment has got a call
    "verification",  # a dialogue has its verdict, and is not in the archive
    "archive",  # a trajectory is about to be appended
    "ranks",  # one of several learners has made its part of a step; the first may not have
    "learned",  # the learner has made a step, which is in no book yet
    "checkpoint",  # a checkpoint is half written
    "sync",  # a step is learned from and weights are about to go to the generators
]

_counts: dict[str, int] = {}


def kill_variable(where: str) -> dict[str, str]:
    """Environment of actors for `PHASE` or `PHASE:N`. Raises `ValueError` for anything else."""
    phase, _, number = where.partition(":")
    if phase not in get_args(Phase) or (number and not (number.isdigit() and int(number))):
        raise ValueError(f"kill_at = {where!r}: give PHASE or PHASE:N, with a phase of {', '.join(get_args(Phase))}")
    return {VARIABLE: where}


def reached(phase: Phase) -> None:
    """Say that a phase is reached; the end, if it is the one to die at."""
    where = _where()
    if not where:
        return
    wanted, _, number = where.partition(":")
    if wanted != phase:
        return
    _counts[phase] = _counts.get(phase, 0) + 1
    if _counts[phase] == int(number or 1):
        _kill_run()


@functools.cache
def _where() -> str:
    """The variable, looked up once: each actor's process has it before the actor is made."""
    return os.environ.get(VARIABLE, "")


def _kill_run() -> None:
    os.kill(owner_of_session(Path(os.environ[SESSION_VARIABLE])), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
