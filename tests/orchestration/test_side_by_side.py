"""Work in processes side by side: in order, told of while it goes on, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from orchestration.side_by_side import Told, WorkerLost, side_by_side


def slow_first(item: int, told: Told) -> tuple[int, int]:
    told(0.5)
    time.sleep(1.0 if item == 0 else 0.0)
    return item, os.getpid()


def fails_at_one(item: int, told: Told) -> None:
    if item == 1:
        raise ValueError("item 1")
    time.sleep(200)


def is_killed_beside_its_file(item: int, told: Told) -> None:
    os.close(tempfile.mkstemp()[0])
    is_killed(item, told)


def is_killed(item: int, told: Told) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def keeps_a_file(item: Path, told: Told) -> None:
    """The first ends at once, the others must be ended."""
    if item.name == "0":
        return
    try:
        item.write_text("")
        told(0.5)
        time.sleep(200)
    finally:
        item.unlink()


def test_results_come_in_the_order_of_the_items_and_progress_while_they_are_made() -> None:
    shares: list[tuple[int, float]] = []
    done: list[int] = []
    found = side_by_side(
        slow_first,
        range(3),
        jobs=2,
        told=lambda index, share: shares.append((index, share)),
        done=lambda index, result: done.append(index),
    )
    assert [item for item, _ in found] == done == [0, 1, 2]
    assert os.getpid() not in {process for _, process in found}
    assert (0, 0.5) in shares


def test_a_single_piece_of_work_is_done_here() -> None:
    shares: list[tuple[int, float]] = []
    found = side_by_side(slow_first, [3], jobs=8, told=lambda *news: shares.append(news))
    assert found == [(3, os.getpid())] and shares == [(0, 0.5)]


def test_the_first_that_raises_ends_the_others() -> None:
    with pytest.raises(ValueError, match="item 1") as raised:
        side_by_side(fails_at_one, [1, 2, 3], jobs=2)
    assert "in fails_at_one" in raised.value.__notes__[0], "where it was raised"
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_told_of() -> None:
    with pytest.raises(WorkerLost, match="--jobs"):
        side_by_side(is_killed, [1, 2], jobs=2)
    assert not multiprocessing.active_children()


def test_what_a_killed_process_kept_for_a_while_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(WorkerLost):
        side_by_side(is_killed_beside_its_file, [1, 2], jobs=2)
    assert not list(tmp_path.iterdir())


def test_a_process_that_ends_before_it_hears_of_its_work_is_told_of(tmp_path: Path) -> None:
    script = tmp_path / "without_a_main_guard.py"
    script.write_text("from orchestration.side_by_side import side_by_side\nside_by_side(divmod, [1, 2], jobs=2)\n")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert "Safe importing of main module" in done.stderr, "Python says what is wrong with the script"
    assert done.stderr.splitlines()[-1].startswith("orchestration.side_by_side.WorkerLost: a process ended before")


def test_an_interrupt_lets_the_others_clean_up(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]

    def interrupted(index: int, share: float) -> None:
        if all(file.exists() for file in files[1:]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(keeps_a_file, files, jobs=3, told=interrupted)
    assert not list(tmp_path.iterdir()) and not multiprocessing.active_children()
