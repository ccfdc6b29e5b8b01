"""The Python of the documentation runs as it is written, in a project of somebody else's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from actors.storage.writer import ArchiveWriter
from tests.actors.storage.samples import random_trajectory

PROJECT = Path(__file__).parents[1]


def _example(page: str, words: str) -> str:
    """The one indented block of a page of docs/ that holds these words."""
    text = (PROJECT / "docs" / page).read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:(?: {4}.*)?\n)+", text)]
    (found,) = [block for block in blocks if words in block]
    return found


def _coroutine(block: str) -> str:
    return f"import asyncio\n\nasync def main():\n{textwrap.indent(block, '    ')}\n\nasyncio.run(main())\n"


def _run(folder: Path, *command: str) -> str:
    """What a command printed that ran in a folder with nothing of the repository's but its packages."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _pytest(folder: Path) -> str:
    """With the modes that pytest-asyncio has unless a project says otherwise."""
    return _run(folder, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")


def test_the_sandbox_is_used_as_a_library(tmp_path: Path) -> None:
    cells = _example("code-environment.md", 'code="x * 7"').strip()
    whole = _example("code-environment.md", "scheduler = CallScheduler(")
    whole = whole.replace("...", f"print(result.stdout)\n{cells}\nprint(result.stdout)")
    (tmp_path / "main.py").write_text(_coroutine(whole))
    assert _run(tmp_path, "main.py").split() == ["42", "42"]


def test_real_jails_are_broken_in_somebody_s_own_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_example("code-environment.md", "pytest_plugins"))
    (tmp_path / "test_crash.py").write_text(_example("code-environment.md", "async def test_a_crash_is_made_good"))
    assert "1 passed" in _pytest(tmp_path)


def test_an_actor_of_somebody_s_own_is_tested_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(_example("simulator.md", "class Greeter(Actor)"))
    (tmp_path / "conftest.py").write_text(_example("simulator.md", "pytest_plugins"))
    (tmp_path / "test_greeter.py").write_text(_example("simulator.md", "def test_who_asks_is_greeted"))
    assert "2 passed" in _pytest(tmp_path)


def test_an_archive_is_read(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "runs" / "quickstart" / "archive")
    stored = [random_trajectory(serial) for serial in range(8)]
    for trajectory in stored:
        writer.append(trajectory)
    writer.close()
    (tmp_path / "main.py").write_text(_example("archive-format.md", "archive.trajectories(wrong)"))
    said = _run(tmp_path, "main.py").splitlines()
    assert [line.split()[0] for line in said] == [each.id for each in stored if not each.verdict.correct] != []


def test_what_needs_a_ray_compiles() -> None:
    compile(_coroutine(_example("simulator.md", "async with RayStage(")), "simulator.md", "exec")
