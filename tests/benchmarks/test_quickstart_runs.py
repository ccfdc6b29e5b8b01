"""The table of the quickstart's runs has a row for every experiment, also for one that solves nothing."""

from __future__ import annotations

from benchmarks.quickstart_runs import row


def stage(accuracy: float, errors: float | None) -> dict[str, float | None]:
    return {
        "accuracy": accuracy,
        "accuracy_low": accuracy,
        "accuracy_high": accuracy,
        "tool_error_share_in_correct": errors,
    }


def test_where_nothing_is_solved_there_is_no_share_of_errors() -> None:
    without_tools = {"stages": [stage(0.0, None), stage(0.0, None)], "wall_seconds": 195.2}
    assert row("no-tools", without_tools) == "| no-tools | 0.0% | 0.0% (0.0% to 0.0%) | +0.0 | - | - | 195 |"


def test_points_are_those_from_the_first_stage_to_the_last() -> None:
    summary = {"stages": [stage(0.25, 0.5), stage(0.5, 0.25)], "wall_seconds": 1.0}
    assert row("seed-0", summary) == "| seed-0 | 25.0% | 50.0% (50.0% to 50.0%) | +25.0 | 50.0% | 25.0% | 1 |"
