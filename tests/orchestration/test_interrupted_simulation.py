"""A simulation that is ended from outside leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # a process that imports everything
@pytest.mark.parametrize(
    ("number", "strategies"),
    [
        (signal.SIGTERM, "predictive"),
        (signal.SIGINT, "predictive"),
        (signal.SIGHUP, "static,predictive"),
    ],
    ids=["terminated", "interrupted", "left-by-its-terminal-with-two-processes"],
)
def test_a_simulation_that_is_ended_leaves_no_folder(number: signal.Signals, strategies: str, tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / "rstar2-14b-64gpu.toml"
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration.cli", "simulate", str(recipe), "--strategies", strategies, "--jobs", "2"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not list(tmp_path.rglob("greenroom-simulation-*/archive/*")):
            assert process.poll() is None, f"it ended early: {process.communicate()[1]}"
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and said.strip() == "interrupted"
    assert not list(tmp_path.iterdir())
