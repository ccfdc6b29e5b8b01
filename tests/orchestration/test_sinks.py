"""What the sinks beside `metrics.jsonl` do with a run's figures."""

from __future__ import annotations

import importlib.util
import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from orchestration.metrics import AllMetrics, JsonlMetrics, TensorBoardMetrics
from orchestration.recipe import Recipe, RecipeError
from orchestration.report import render
from orchestration.report_source import read_run
from orchestration.run_folder import write_json
from orchestration.sinks import Harmless, LiveReport, PrometheusMetrics, WandbMetrics, further_sinks
from policies.run_progress import RunProgress
from policies.trajectory import UNTRAINED
from tests.orchestration.small_recipe import small_recipe


def with_metrics(**settings: object) -> Recipe:
    return Recipe.model_validate(small_recipe().model_dump() | {"metrics": settings})


def page(port: int) -> dict[str, float]:
    """Samples by name and labels, as Prometheus would read them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_prometheus_reads_the_latest_figures_of_each_stage() -> None:
    sink = PrometheusMetrics(0)
    try:
        sink.write("step", "rl-1", 1, reward_mean=0.25, note="text", unknown=None)
        sink.write("step", "rl-1", 2, reward_mean=0.5, **{"busy_share_generator-0": 0.75})
        sink.write("step", "rl-2", 1, reward_mean=float("nan"))
        told = page(sink.port)
    finally:
        sink.close()
        sink.close()
    assert told == {
        'greenroom_step{actor="",stage="rl-1"}': 2.0,
        'greenroom_step{actor="",stage="rl-2"}': 1.0,
        'greenroom_step_reward_mean{actor="",stage="rl-1"}': 0.5,
        'greenroom_step_busy_share{actor="generator-0",stage="rl-1"}': 0.75,
    }
    with pytest.raises(OSError):
        page(sink.port)


def test_a_port_that_is_taken_is_named_before_the_run_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RecipeError, match=rf"prometheus_port = {port}: .*choose another port"):
            further_sinks(with_metrics(prometheus_port=port), tmp_path)


def test_the_report_is_renewed_while_the_run_goes_on_and_reads_itself_again(tmp_path: Path) -> None:
    now, rendered = [0.0], threading.Semaphore(0)

    def write(folder: Path) -> Path:
        (folder / "report.html").write_text(render(read_run(folder)))
        rendered.release()
        return folder

    sink = AllMetrics(JsonlMetrics(tmp_path / "metrics.jsonl"), LiveReport(tmp_path, 60.0, write, lambda: now[0]))
    sink.write("step", "rl", 1, reward_mean=0.5)
    assert not (tmp_path / "report.html").exists(), "a minute has not passed"
    now[0] = 61.0
    sink.write("step", "rl", 2, reward_mean=0.75)
    assert rendered.acquire(timeout=60)
    now[0] = 100.0
    sink.write("step", "rl", 3, reward_mean=0.8)
    sink.close()
    assert not rendered.acquire(blocking=False), "once a minute is enough"
    text = (tmp_path / "report.html").read_text()
    assert "0.75" in text and 'http-equiv="refresh"' in text
    write_json(tmp_path / "summary.json", {"name": "done", "finished": True})
    assert 'http-equiv="refresh"' not in render(read_run(tmp_path))


def test_a_report_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(folder: Path) -> Path:
        raise OSError("no space left on device")

    sink = LiveReport(tmp_path, 1.0, full, iter([0.0, 5.0, 5.0]).__next__)
    sink.write("step", "rl", 1)
    sink.close()
    assert "could not be renewed: no space left on device" in caplog.text


def test_sinks_are_those_that_the_recipe_asks_for(tmp_path: Path) -> None:
    assert further_sinks(with_metrics(report_seconds=0), tmp_path) == []
    (report,) = further_sinks(with_metrics(), tmp_path)
    assert isinstance(report, Harmless) and isinstance(report.sink, LiveReport)


class Broken:
    """A sink whose service is gone."""

    def write(self, kind: str, stage: str, step: int, **figures: object) -> None:
        raise ConnectionError("nobody listens")

    def rewind(self, progress: RunProgress) -> None:
        raise KeyError("step")

    def close(self) -> None:
        raise RuntimeError("never opened")


def test_a_sink_that_fails_is_told_of_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics.jsonl"
    sink = AllMetrics(JsonlMetrics(file), Harmless(Broken()), TensorBoardMetrics(tmp_path))
    sink.write("step", "rl", 3, reward_mean=0.5)
    sink.rewind(RunProgress(version=UNTRAINED))
    sink.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Broken took no figures of step 3 of rl: ConnectionError: nobody listens",
        "Broken could not go back: KeyError: 'step'",
        "Broken could not be closed: RuntimeError: never opened",
    ]
    assert b"step/reward_mean" in next(tmp_path.glob("events*")).read_bytes(), "those after it get their figures"


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_missing_wandb_is_named_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="wandb is not installed; `uv pip install wandb`"):
        further_sinks(with_metrics(wandb=True), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb, an optional extra, is not installed")
def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    sink = WandbMetrics(tmp_path, "small", {"seed": 3})
    sink.write("step", "rl", 1, reward_mean=0.5, note="text", unknown=None)
    sink.close()
    sink.close()
    (stored,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    data = stored.read_bytes()
    assert b"step/reward_mean" in data and b"rl" in data
