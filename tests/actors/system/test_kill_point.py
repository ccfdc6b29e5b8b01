"""A phase that is reached for the Nth time ends the process that got there, and the one that directs the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actors.system.kill_point import VARIABLE, kill_variable
from actors.system.leftovers import SESSION_VARIABLE

ROOT = Path(__file__).parents[3]
DIRECTS = """
import os, subprocess, sys
session = f"/tmp/gr-{os.getpid()}-1-session"
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=os.environ | {"%s": session})
print(child.wait(), flush=True)
"""
REACHES = """
from actors.system.kill_point import reached
for phase in ("decode", "tool", "decode", "decode"):
    print(phase, flush=True)
    reached(phase)
"""


def run(where: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", DIRECTS % SESSION_VARIABLE, REACHES],
        cwd=ROOT,
        env=environment | ({} if where is None else kill_variable(where)),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_run_dies_at_the_phase_and_time_asked_for() -> None:
    done = run("decode:2")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["decode", "tool", "decode"]


def test_without_a_phase_nothing_dies() -> None:
    done = run(None)
    assert done.returncode == 0 and done.stdout.split() == ["decode", "tool", "decode", "decode", "0"]


@pytest.mark.parametrize("where", ["lunch", "decode:0", "decode:x", ""])
def test_an_unknown_phase_is_refused_with_those_that_there_are(where: str) -> None:
    with pytest.raises(ValueError, match=r"give PHASE or PHASE:N, with a phase of .*prefill, decode"):
        kill_variable(where)
