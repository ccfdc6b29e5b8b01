"""The benchmark counts what it says it counts; how fast it is, is not a test's business."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.storage.writer import ArchiveWriter
from orchestration.bench.archive import ArchiveFigures, bench_archive, made_up_trajectory
from tests.actors.storage.samples import random_trajectory


def check(figures: ArchiveFigures) -> None:
    for side in (figures.archive, figures.jsonl, figures.parquet):
        assert side.bytes_per_token == pytest.approx(side.bytes / figures.tokens)
        per_trajectory = figures.tokens / figures.trajectories
        assert side.append_tokens_per_s == pytest.approx(side.append_per_s * per_trajectory)
        assert side.scan_tokens_per_s == pytest.approx(side.scan_per_s * per_trajectory)
        assert side.scan_per_s > 0


def test_the_figures_of_made_up_trajectories_agree_with_each_other() -> None:
    figures = bench_archive(trajectories=6, rounds=2)
    check(figures)
    assert (figures.trajectories, figures.rounds, figures.source) == (6, 2, "made up")
    assert figures.tokens == 6 * (150 + 3 * 300 + 2 * 40)


def test_stored_trajectories_are_measured_too(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    stored = [random_trajectory(serial) for serial in range(10)]
    for each in stored:
        writer.append(each)
    writer.close()
    figures = bench_archive(trajectories=7, rounds=1, archive=tmp_path)
    check(figures)
    assert (figures.trajectories, figures.source) == (7, str(tmp_path))
    assert figures.tokens == sum(len(span.ids) // 4 for each in stored[:7] for span in each.spans)


def test_made_up_trajectories_are_the_same_every_time_and_differ_from_each_other() -> None:
    assert made_up_trajectory(3) == made_up_trajectory(3)
    assert made_up_trajectory(3).spans != made_up_trajectory(4).spans
