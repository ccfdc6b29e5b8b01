"""What a run measures: lines that survive a crash, and intervals that are right."""

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.metrics import (
    AllMetrics,
    JsonlMetrics,
    MetricsUnreadable,
    TensorBoardMetrics,
    read_metrics,
    stages_from_evaluations,
    wilson_interval,
)


def ticking(*moments: float) -> Callable[[], float]:
    """A clock that tells `moments` one after another."""
    return iter(moments).__next__


def test_lines_carry_kind_stage_step_seconds_and_their_figures(tmp_path: Path) -> None:
    with JsonlMetrics(tmp_path / "run" / "metrics.jsonl", now=ticking(100.0, 101.5)) as sink:
        sink.write("step", "rl-1", 7, reward_mean=0.5, groups=np.int64(16), share=np.float32(0.25), last=True, text="é")

    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == [
        {
            "kind": "step",
            "stage": "rl-1",
            "step": 7,
            "seconds": 1.5,
            "reward_mean": 0.5,
            "groups": 16,
            "share": 0.25,
            "last": True,
            "text": "é",
        }
    ]


def test_each_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlMetrics(path)
    for step in range(3):
        sink.write("step", "rl-1", step)
        assert [record["step"] for record in read_metrics(path)] == list(range(step + 1))
    sink.close()


@pytest.mark.parametrize("what", ["unlink", "rename"])
def test_lines_are_not_written_to_a_file_that_nobody_finds(tmp_path: Path, what: str) -> None:
    with JsonlMetrics(tmp_path / "metrics.jsonl") as metrics:
        metrics.write("step", "rl-1", 1)
        if what == "unlink":
            (tmp_path / "metrics.jsonl").unlink()
        else:
            (tmp_path / "metrics.jsonl").rename(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="removed or moved while it was in use"):
            metrics.write("step", "rl-1", 2)


@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf, np.float32("nan"), None])
def test_numbers_that_json_cannot_hold_are_written_as_null(tmp_path: Path, unknown: float | None) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonlMetrics(path) as sink:
        sink.write("step", "rl-1", 1, learner_loss=unknown)

    strict = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["learner_loss"] is None


@pytest.mark.parametrize("nested", [[1.0], {"a": 1}, np.zeros(2)])
def test_figures_that_are_not_flat_are_refused_by_name(tmp_path: Path, nested: object) -> None:
    with JsonlMetrics(tmp_path / "metrics.jsonl") as sink, pytest.raises(ValueError, match="turns_by_generator"):
        sink.write("step", "rl-1", 1, turns_by_generator=nested)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with JsonlMetrics(tmp_path / "metrics.jsonl") as sink, pytest.raises(ValueError, match="fine_tune, step"):
        sink.write("steps", "rl-1", 1)  # pyright: ignore[reportArgumentType]


def test_a_file_cut_anywhere_yields_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonlMetrics(path) as sink:
        for step in range(3):
            sink.write("step", "étape", step, loss=0.5)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        steps = [record["step"] for record in read_metrics(path)]
        whole = content[:length].count(b"\n")
        # A line that lacks nothing but its newline is whole too.
        whole += content[length : length + 1] == b"\n" and not content[:length].endswith(b"\n")
        assert steps == list(range(whole))


def test_appending_after_a_crash_cuts_the_torn_line_off_and_goes_on_with_the_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonlMetrics(path, now=ticking(0.0, 20.0)) as sink:
        sink.write("step", "rl-1", 1)
    with path.open("a") as file:
        file.write('{"kind": "step", "sta')

    with JsonlMetrics(path, now=ticking(500.0, 503.0)) as sink:
        sink.write("step", "rl-1", 2)

    assert [(record["step"], record["seconds"]) for record in read_metrics(path)] == [(1, 20.0), (2, 23.0)]


@pytest.mark.parametrize("bad", ["{torn\n", "[1, 2]\n", '{"step": 1}\n'])
def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step"}\n' + bad + '{"kind": "step"}\n')
    with pytest.raises(MetricsUnreadable, match="line 2"):
        read_metrics(path)


def test_a_run_without_metrics_has_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_tensorboard_reads_back_the_numbers_beside_the_lines(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = AllMetrics(JsonlMetrics(tmp_path / "metrics.jsonl"), TensorBoardMetrics(tmp_path / "board"))
    for step in (1, 2):
        sink.write("step", "rl-1", step, reward_mean=step / 4, note="text", learner_loss=math.nan)
    sink.close()
    sink.close()

    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"tensors": 0})
    board.Reload()
    assert board.Tags()["tensors"] == ["step/reward_mean"]
    events = board.Tensors("step/reward_mean")
    assert [(event.step, event.tensor_proto.float_val[0]) for event in events] == [(1, 0.25), (2, 0.5)]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_tensorboards_steps_go_on_from_stage_to_stage(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardMetrics(tmp_path, {"sft": 10, "rl-1": 4, "rl-2": 6})
    sink.write("step", "rl-1", 1, reward_mean=0.5)
    sink.write("evaluation", "rl-1", 0, accuracy=0.5)
    sink.write("step", "rl-2", 2, reward_mean=0.5)
    sink.close()
    board = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    board.Reload()
    assert [event.step for event in board.Tensors("step/reward_mean")] == [11, 16]
    assert [event.step for event in board.Tensors("evaluation/accuracy")] == [14]


def test_what_the_file_system_refuses_is_raised_by_whoever_writes_and_the_other_sinks_are_closed(
    tmp_path: Path,
) -> None:
    board, lines = TensorBoardMetrics(tmp_path), JsonlMetrics(tmp_path / "metrics.jsonl")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            board.write("step", "rl-1", 1, **{f"figure_{number}": 1.0 for number in range(20)})
        with pytest.raises(OSError, match="File too large"):
            AllMetrics(board, lines).close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(ValueError, match="closed file"):
        lines.write("step", "rl-1", 1)


def test_stage_rows_are_the_last_evaluation_of_each_state_in_order() -> None:
    records = [
        {"kind": "evaluation", "stage": "sft", "accuracy": 0.3, "problems": 256},
        {"kind": "evaluation", "stage": "rl-1", "accuracy": 0.4},
        {"kind": "step", "stage": "rl-2", "accuracy": 0.9},
        {"kind": "evaluation", "stage": "rl-1", "accuracy": 0.6},
    ]
    rows = stages_from_evaluations(records)
    assert [(row["name"], row["accuracy"], row["problems"]) for row in rows] == [("sft", 0.3, 256), ("rl-1", 0.6, None)]


@given(n=st.integers(1, 2000), data=st.data(), z=st.floats(0.5, 4.0))
def test_wilson_bounds_are_where_the_score_test_stops_to_reject(n: int, data: st.DataObject, z: float) -> None:
    """The interval is defined as all shares p with |successes/n - p| <= z sqrt(p (1 - p) / n)."""
    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n, z)
    share = successes / n
    assert 0.0 <= low <= share <= high <= 1.0
    for bound in (low, high):
        assert abs(share - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / n), abs=1e-9)


def test_wilson_interval_agrees_with_published_figures() -> None:
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_nothing_observed_tells_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 4), (5, 4), (1, 0)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="between 0 and n"):
        wilson_interval(successes, n)
