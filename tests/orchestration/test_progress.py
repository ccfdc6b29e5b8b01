"""What long work shows: a live display on a terminal, plain lines elsewhere."""

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from orchestration.progress import Progress, RunTable, format_figure, format_seconds

PROJECT = Path(__file__).resolve().parents[2]


class HandClock:
    """Monotonic time that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_plain_output_is_whole_lines_without_control_characters() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        progress.start_stage("rl-1", 2)
        progress.update(1, reward_mean=0.4123, accuracy=0.5, tokens_per_s=1234.5, waiting_rollouts=7)
        progress.note("a tool wrote \x1b[31mred\x1b[0m and 50%\rback")
        progress.update(2, reward_mean=None)
        progress.table("done", ["stage", "tokens"], [["rl-1", 12]])

    text = out.getvalue()
    assert text.endswith("\n")
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", text) == []
    lines = text.splitlines()
    assert "rl-1 begins, 2 steps" in lines[0]
    assert "rl-1 1/2  reward 0.412  accuracy 50.0%  tokens/s 1,234  waiting rollouts 7" in lines[1]
    assert "reward –" in lines[3]
    assert lines[-1].split() == ["|", "rl-1", "|", "12", "|"]


def test_a_step_that_is_told_before_its_stage_begins_is_not_shown() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        progress.update(5, reward_mean=0.4)
        progress.start_stage("rl-1", 16, done=5)
        progress.update(6, reward_mean=0.5)
    assert [line.split("] ")[1].split("  ")[0] for line in out.getvalue().splitlines()] == [
        "rl-1 goes on after step 5 of 16",
        "rl-1 6/16",
    ]


def test_plain_output_is_throttled_but_tells_of_the_first_and_the_last_step() -> None:
    out, clock = io.StringIO(), HandClock()
    with Progress(out, plain_every_s=5.0, now=clock) as progress:
        progress.start_stage("sft", 100)
        for step in range(1, 101):
            clock.now += 0.2  # 20 s in all
            progress.update(step, learner_loss=1.0 / step)

    told = [int(found) for found in re.findall(r"sft (\d+)/100", out.getvalue())]
    assert told[0] == 1
    assert told[-1] == 100
    assert 4 <= len(told) <= 6


def test_figures_keep_their_last_value_within_a_stage_and_go_with_it() -> None:
    out = io.StringIO()
    progress = Progress(out, plain_every_s=0.0)
    progress.start_stage("rl-1", 3)
    progress.update(1, reward_mean=0.25)
    progress.update(2, tokens_per_s=10)
    progress.start_stage("rl-2", 3)
    progress.update(1, tokens_per_s=20)

    lines = out.getvalue().splitlines()
    assert "reward 0.25" in lines[2]
    assert "tokens/s 10" in lines[2]
    assert "reward" not in lines[4]


def test_eta_follows_the_stage_s_own_pace() -> None:
    clock = HandClock()
    progress = Progress(io.StringIO(), now=clock)
    clock.now += 60
    progress.start_stage("rl-1", 10)
    assert progress.eta_seconds() is None
    clock.now += 8
    progress.update(4)
    assert progress.eta_seconds() == pytest.approx(12.0)


def test_a_slow_first_step_says_nothing_of_the_time_that_hundreds_more_will_take() -> None:
    clock = HandClock()
    progress = Progress(io.StringIO(), now=clock)
    progress.start_stage("sft", 280)
    clock.now += 60
    progress.update(1)
    assert progress.eta_seconds() is None
    clock.now += 5
    progress.update(11)
    assert progress.eta_seconds() == pytest.approx(269 * 0.5)


def test_a_stage_that_goes_on_reckons_with_the_steps_that_it_has_taken_itself() -> None:
    clock, lines = HandClock(), io.StringIO()
    progress = Progress(lines, now=clock)
    progress.start_stage("rl-1", 10, done=6)
    assert progress.eta_seconds() is None and "rl-1 goes on after step 6 of 10" in lines.getvalue()
    clock.now += 8
    progress.update(8)
    assert progress.eta_seconds() == pytest.approx(8.0)


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="give 0 if"):
        Progress(io.StringIO()).start_stage("rl-1", -1)


def run_on_a_terminal(code: str) -> str:
    """What `code` writes to a terminal of 24 rows and 90 columns."""
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "90", "LINES": "24", "PYTHONPATH": str(PROJECT)}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    written = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other end has closed
            break
        if not piece:
            break
        written += piece
    os.close(master)
    child.wait()
    return written.decode()


ANY_ENDING = """
    from orchestration.progress import Progress
    with Progress() as progress:
        progress.start_stage("rl-1", 10)
        progress.update(3, reward_mean=0.5, waiting_rollouts=4)
        progress.note("weights 3 reached all generators")
        {ending}
    """


@pytest.mark.parametrize(
    "ending",
    ["pass", "raise RuntimeError('broken')", "raise KeyboardInterrupt", "raise SystemExit(3)"],
    ids=["at its end", "after a failure", "after Ctrl-C", "after exit"],
)
def test_the_terminal_shows_its_cursor_again(ending: str) -> None:
    written = run_on_a_terminal(ANY_ENDING.format(ending=ending))
    assert "\x1b[?25l" in written, "the live display did not start"
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_a_terminal_sees_stage_step_figures_and_events() -> None:
    written = run_on_a_terminal(ANY_ENDING.format(ending="pass"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    for expected in ("rl-1", "step 3/10", "reward 0.5", "waiting rollouts 4", "weights 3 reached all generators"):
        assert expected in text


def test_the_run_s_table_shows_intervals_and_dashes_for_what_is_not_known() -> None:
    known = {
        "name": "sft",
        "accuracy": 0.43,
        "accuracy_low": 0.371,
        "accuracy_high": 0.491,
        "mean_response_tokens": 84.04,
        "mean_tool_calls": 1.6,
        "tool_error_share_in_correct": 0.311,
    }
    rows = RunTable([known, {"name": "rl-1"}]).rows()
    assert rows[0] == ("sft", "43.0% (37.1–49.1)", "84.0", "1.60", "31.1%")
    assert rows[1] == ("rl-1", "–", "–", "–", "–")
    assert all(len(row) == len(RunTable.columns) for row in rows)


def test_a_wide_table_is_not_cut_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    row = {"name": "a stage with quite a long name", "accuracy": 1.0, "accuracy_low": 0.98, "accuracy_high": 1.0}
    RunTable([row]).show(Progress(out))
    assert "a stage with quite a long name" in out.getvalue()
    assert "100.0% (98.0–100.0)" in out.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tool_error_share_in_correct", 0.0512, "5.1%"),
        ("tokens_per_s", 10432.4, "10,432"),
        ("learner_loss", 0.00123456, "0.00123"),
        ("problems", 2048, "2,048"),
        ("turns", 2048.0, "2,048"),
        ("reward_mean", None, "–"),
    ],
)
def test_figures_are_shown_as_people_read_them(name: str, value: float | None, shown: str) -> None:
    assert format_figure(name, value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_lengths_of_time_are_shown_as_people_read_them(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown
