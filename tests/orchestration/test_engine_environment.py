"""Commands that host an engine say so before they import what reads it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestration.engine_environment import QUIET_ENGINE

PROBE = """
import os, sys
from orchestration import cli
try:
    cli.main()
except SystemExit as end:
    print(end.code, *(os.environ.get(name) for name in sys.stdin.read().split()))
print(*[name for name in ("torch", "vllm", "transformers", "huggingface_hub") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "nowhere.toml"),
        ("chat", "--model", "nowhere"),
        ("replay", "trajectory", "nowhere", "rl/0/0/0", "--from-turn", "0"),
    ],
    ids=lambda command: command[0],
)
def test_the_environment_is_set_before_torch_or_the_hub_s_library_is_imported(command: tuple[str, ...]) -> None:
    names = ["TORCH_COMPILE_DISABLE", "VLLM_CPU_OMP_THREADS_BIND", "HF_HUB_OFFLINE"]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *command], input=" ".join(names), capture_output=True, text=True
    )
    usage_error = "2"  # the input is not there: the command has come no further than reading it
    assert done.stdout.splitlines() == [" ".join([usage_error, *(QUIET_ENGINE[name] for name in names)]), ""], done
