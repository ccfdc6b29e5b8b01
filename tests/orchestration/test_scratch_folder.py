"""A temporary folder is deleted, wherever in its life a signal arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.scratch_folder import scratch_folder

ROOT = Path(__file__).parents[2]

HIT_AFTER = """
import os, signal, sys
from orchestration.scratch_folder import scratch_folder

def end(*_):
    print("handled", flush=True)
    raise KeyboardInterrupt

def hit(frame, event, called):
    if event == "c_return" and called.__name__ == sys.argv[1]:
        sys.setprofile(None)
        os.kill(os.getpid(), int(sys.argv[2]))

signal.signal(int(sys.argv[2]), end)
sys.setprofile(hit)
with scratch_folder("scratch-") as folder:
    (folder / "part").mkdir()
    print("worked", flush=True)
"""


def test_a_scratch_folder_lives_as_long_as_its_work() -> None:
    with scratch_folder("scratch-") as folder:
        (folder / "part").mkdir()
        (folder / "part" / "file").write_text("")
    assert folder.name.startswith("scratch-") and not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("call", "said"),
    [("mkdir", ["handled"]), ("rmdir", ["worked", "handled"])],
    ids=["made", "half-deleted"],
)
def test_a_signal_finds_no_moment_at_which_it_leaves_a_scratch_folder(
    call: str, said: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIT_AFTER, call, str(int(number))],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == said and "KeyboardInterrupt" in done.stderr
    assert not list(tmp_path.iterdir())
