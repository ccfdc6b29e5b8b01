"""Which versions were at work can be asked, and is in a run's folder."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import ray
from typer.testing import CliRunner

from env.image import pinned_packages
from orchestration.cli import app
from orchestration.run_folder import write_versions

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_command_prints_its_version_and_what_it_computes_with() -> None:
    done = CliRunner().invoke(app, ["--version"])
    version = tomllib.loads(PYPROJECT.read_text())["project"]["version"]
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"greenroom {version}"
    assert f"ray {ray.__version__}" in done.stdout.splitlines()


def test_a_run_notes_what_it_computes_with_apart_from_what_programs_find(tmp_path: Path) -> None:
    write_versions(tmp_path)
    software, sandbox = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("software", "sandbox"))
    assert {"greenroom", "ray", "torch", "python"} <= software.keys()
    assert sandbox.items() >= pinned_packages().items() and "ray" not in sandbox
