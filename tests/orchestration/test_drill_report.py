"""What a drill says of a run whose disk it has filled. Whole drills: docs/faults.md."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.storage.checkpoints import write_checkpoint
from actors.storage.disk import CannotWrite, writing
from actors.storage.writer import ArchiveWriter
from actors.system.actor_faults import ActorFaultPlan
from orchestration.drill_commands import show
from orchestration.ray_drill import REPORT_FILE, DrillReport, RayDrill
from orchestration.resume import CHECKPOINTS
from orchestration.strikes import Strike
from policies.run_progress import NOTHING_DONE
from tests.orchestration.small_recipe import small_recipe

FULL = Strike("at 1 s: fill the run folder", "fill", "", "run folder", 1.0, confirmed=True, outcome="until the end")


def reason(folder: Path) -> str:
    """What a run says when its disk is full."""
    with pytest.raises(CannotWrite) as refused, writing(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return str(refused.value)


def reported(folder: Path, strike: Strike, summary: dict[str, Any]) -> DrillReport:
    drill = RayDrill(small_recipe(), folder, ActorFaultPlan(), seed=0)
    drill._strikes.append(strike)
    return drill.report(summary)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has stored nothing yet, and has a checkpoint."""
    ArchiveWriter(tmp_path / "archive").close()
    write_checkpoint(tmp_path / CHECKPOINTS, NOTHING_DONE, lambda partial: None, keep=1)
    return tmp_path


def test_a_run_that_a_full_disk_ends_has_passed_if_it_says_so_and_can_go_on(folder: Path) -> None:
    report = reported(folder, FULL, {"finished": False, "reason": reason(folder)})
    assert report.ended_as_it_must and report.passed, report.faults
    assert report.hit == {"fill run folder": 1}
    assert json.loads((folder / REPORT_FILE).read_text())["strikes"] == [asdict(FULL)]
    out = io.StringIO()
    show(report, Console(file=out, width=300))
    assert "fill run folder" in out.getvalue() and "as it must when its disk is full" in out.getvalue()


def test_one_that_ends_for_anything_else_has_not(folder: Path) -> None:
    report = reported(folder, FULL, {"finished": False, "reason": "loss is not finite"})
    assert not report.ended_as_it_must and not report.passed


def test_one_whose_disk_the_drill_has_not_filled_has_not(folder: Path) -> None:
    other = Strike("at 1 s: kill archive", "kill", "archive", "actor", 1.0, confirmed=True, outcome="recovered")
    assert not reported(folder, other, {"finished": False, "reason": reason(folder)}).passed


def test_one_that_can_not_be_resumed_has_not(folder: Path) -> None:
    for file in (folder / CHECKPOINTS).rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    assert not reported(folder, FULL, {"finished": False, "reason": reason(folder)}).passed
