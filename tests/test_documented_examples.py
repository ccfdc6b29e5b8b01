"""The Python of the documentation runs as it is written, in a project of somebody else's."""

from __future__ import annotations

from pathlib import Path

from actors.storage.writer import ArchiveWriter
from tests.actors.storage.samples import random_trajectory
from tests.support.documented import coroutine, example, run, run_pytest


def test_the_sandbox_is_used_as_a_library(tmp_path: Path) -> None:
    cells = example("code-environment.md", 'code="x * 7"').strip()
    whole = example("code-environment.md", "scheduler = CallScheduler(")
    whole = whole.replace("...", f"print(result.stdout)\n{cells}\nprint(result.stdout)")
    (tmp_path / "main.py").write_text(coroutine(whole))
    assert run(tmp_path, "main.py").split() == ["42", "42"]


def test_real_jails_are_broken_in_somebody_s_own_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(example("code-environment.md", "pytest_plugins"))
    (tmp_path / "test_crash.py").write_text(example("code-environment.md", "async def test_a_crash_is_made_good"))
    assert "1 passed" in run_pytest(tmp_path)


def test_an_actor_of_somebody_s_own_is_tested_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(example("simulator.md", "class Greeter(Actor)"))
    (tmp_path / "conftest.py").write_text(example("simulator.md", "pytest_plugins"))
    (tmp_path / "test_greeter.py").write_text(example("simulator.md", "def test_who_asks_is_greeted"))
    assert "2 passed" in run_pytest(tmp_path)


def test_an_archive_is_read(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "runs" / "quickstart" / "archive")
    stored = [random_trajectory(serial) for serial in range(8)]
    for trajectory in stored:
        writer.append(trajectory)
    writer.close()
    (tmp_path / "main.py").write_text(example("archive-format.md", "archive.trajectories(wrong)"))
    said = run(tmp_path, "main.py").splitlines()
    assert [line.split()[0] for line in said] == [each.id for each in stored if not each.verdict.correct] != []


def test_what_needs_a_ray_compiles() -> None:
    compile(coroutine(example("simulator.md", "async with RayStage(")), "simulator.md", "exec")
