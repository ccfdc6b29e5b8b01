"""Stored calls, executed again in real sandboxes: what is the same, what is by chance, and what is found out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env.cgroup_hierarchy import find_hierarchy
from env.tool_call import Limits, ToolCall, ToolResult
from orchestration.cli import app
from orchestration.replay.environment import SandboxSetting, cause_of_timeout, difference_kinds
from orchestration.replay.environment_tables import image_differences
from policies.trajectory import CallRecord, Trajectory
from tests.orchestration.archive.dialogues import PROMPT, failed_call, text_span, text_trajectory
from tests.orchestration.replay.executed_calls import cells_rollout, execute, rollout, store

PROGRAMS = {
    "sum": "print(6 * 7)",
    "error": "print(undefined)",
    "numpy": "import numpy as np\nprint(np.__version__, np.float64(0.1))",
    "large": "data = bytearray(100 << 20)\nprint(len(data))",
    "random": "import random\nprint(random.random())",
    "address": "print(object())",
    "clock": "import time\nprint(time.time_ns())",
    "seeded": "import random\nrandom.seed(1)\nprint(random.random())",
}


@pytest.fixture(scope="module")
def trajectories() -> dict[str, Trajectory]:
    results = execute(list(PROGRAMS.values()))
    assert [result.status for result in results] == ["success", "error", *["success"] * 6]
    made = zip(PROGRAMS.items(), results, strict=True)
    return {name: rollout(sample, code, result) for sample, ((name, code), result) in enumerate(made)}


@pytest.fixture
def run(tmp_path: Path, trajectories: dict[str, Trajectory]) -> Path:
    return store(tmp_path / "run", list(trajectories.values()))


def replay(run: Path, *options: str) -> tuple[int, dict]:
    done = CliRunner().invoke(app, ["replay", "environment", str(run), "--json", *options])
    assert done.stdout, done.output
    return done.exit_code, json.loads(done.stdout)


def altered(trajectory: Trajectory, index: int = 0, **changes: object) -> Trajectory:
    """The same with another result of one call."""
    calls = list(trajectory.calls)
    result = calls[index].result.model_copy(update=changes)
    calls[index] = calls[index].model_copy(update={"result": result})
    return trajectory.model_copy(update={"calls": tuple(calls)})


def codes(told: dict, *, unexpected: bool) -> set[str]:
    return {each["code"] for each in told["differences"] if each["unexpected"] is unexpected}


@pytest.mark.slow
def test_the_same_sandbox_answers_the_same_and_chance_is_told_apart(run: Path) -> None:
    code, told = replay(run)
    assert (code, told["compared"], told["unexpected"], told["image"]) == (0, len(PROGRAMS), {}, {})
    by_chance = {PROGRAMS[name] for name in ("random", "address", "clock")}
    assert codes(told, unexpected=False) >= by_chance - {PROGRAMS["address"]}  # a jail's addresses may repeat
    assert codes(told, unexpected=False) <= by_chance
    assert told["same"] + len(told["differences"]) == len(PROGRAMS)


@pytest.mark.skipif(find_hierarchy() is None, reason="without cgroups a program gets more than its limit")
@pytest.mark.slow
def test_a_lowered_memory_limit_is_detected(run: Path) -> None:
    code, told = replay(run, "--memory", "64")
    assert (code, told["unexpected"]) == (1, {"status": 1})
    assert told["statuses"]["success -> memory"] == 1
    assert codes(told, unexpected=True) == {PROGRAMS["large"]}


@pytest.mark.parametrize("memory", ["nan", "inf", "-1"])
def test_a_memory_limit_that_is_none_is_refused(tmp_path: Path, memory: str) -> None:
    done = CliRunner().invoke(app, ["replay", "environment", str(tmp_path), "--memory", memory])
    assert done.exit_code == 2
    assert "'--memory'" in done.output


@pytest.mark.slow
def test_one_altered_output_is_detected_and_named(tmp_path: Path, trajectories: dict[str, Trajectory]) -> None:
    changed = trajectories | {"sum": altered(trajectories["sum"], stdout="43\n")}
    code, told = replay(store(tmp_path / "run", list(changed.values())))
    assert (code, told["unexpected"]) == (1, {"output": 1})
    (found,) = [each for each in told["differences"] if each["unexpected"]]
    assert (found["call"], found["stored"]["stdout"], found["replayed"]["stdout"]) == ("rl/0/0/0/0/0", "43\n", "42\n")


CELLS = [
    "import random\nx = 6",
    "y = x * 7",
    "print(y, random.random())",
    "print(y)",
    "import os; os._exit(3)",
    "print(y)",
]


@pytest.fixture(scope="module")
def session() -> Trajectory:
    """A rollout of cells that share names; the fifth ends their process, and the last runs in another one."""
    made = cells_rollout(0, CELLS)
    assert [record.result.stdout for record in made.calls if record.call.code == "print(y)"] == ["42\n", "42\n"]
    assert made.calls[4].result.session_ended and made.calls[5].result.restarted
    return made


@pytest.mark.slow
def test_cells_are_executed_again_in_their_order_and_in_one_session(tmp_path: Path, session: Trajectory) -> None:
    code, told = replay(store(tmp_path / "run", [session]), "--workers", "2")
    assert (code, told["compared"], told["same"], told["left_out"]) == (0, len(CELLS), len(CELLS) - 1, {})
    (by_chance,) = told["differences"]
    assert (by_chance["call"], by_chance["cause"]) == ("rl/0/0/0/2/0", "two executions differ")
    assert by_chance["replayed"]["stdout"].startswith("42 0.")


@pytest.mark.slow
def test_a_cell_that_answers_otherwise_is_not_taken_for_chance(tmp_path: Path, session: Trajectory) -> None:
    code, told = replay(store(tmp_path / "run", [altered(session, 3, stdout="43\n")]), "--workers", "2")
    assert (code, told["unexpected"]) == (1, {"output": 1})
    (found,) = [each for each in told["differences"] if each["unexpected"]]
    assert (found["call"], found["replayed"]["stdout"], found["cause"]) == ("rl/0/0/0/3/0", "42\n", None)


@pytest.mark.slow
def test_another_stream_of_a_seeded_generator_is_no_chance(tmp_path: Path, trajectories: dict[str, Trajectory]) -> None:
    changed = altered(trajectories["seeded"], stdout="0.5\n")
    code, told = replay(store(tmp_path / "run", [changed]))
    assert (code, told["unexpected"]) == (1, {"output": 1})


@pytest.mark.slow
def test_the_versions_of_another_image_are_compared(run: Path) -> None:
    versions = json.loads((run / "sandbox.json").read_text())
    (run / "sandbox.json").write_text(json.dumps(versions | {"numpy": "1.26.4"}))
    code, told = replay(run, "--where", "sample=0")
    assert (code, told["unexpected"], told["image"]) == (1, {}, {"numpy": ["1.26.4", versions["numpy"]]})


@pytest.mark.slow
def test_what_never_ran_is_counted_and_not_run(tmp_path: Path, trajectories: dict[str, Trajectory]) -> None:
    refused = failed_call("invalid_call", reason="unknown tool")
    call = CallRecord(turn=0, call=ToolCall(id=refused.id, code="{bad"), result=refused)
    bad = text_trajectory(9, PROMPT, text_span("model", "{bad"), calls=(call,))
    code, told = replay(store(tmp_path / "run", [bad, trajectories["sum"]]))
    assert (code, told["compared"], told["left_out"]) == (0, 1, {"invalid_call": 1})


def test_an_image_that_is_not_built_is_refused(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "environment", str(run), "--image", str(tmp_path / "nowhere")])
    assert done.exit_code != 0 and f"env.image --libraries {tmp_path / 'nowhere'}`" in str(done.exception)


def test_a_damaged_archive_is_refused(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    segment = copy / "archive" / "segment-00000.gra"
    segment.with_suffix(".idx").unlink()
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    done = CliRunner().invoke(app, ["replay", "environment", str(copy)])
    assert done.exit_code == 1 and "DAMAGED: the archive is damaged: segment-00000.gra, byte" in done.output


def result(**fields: object) -> ToolResult:
    return ToolResult.model_validate({"id": "a", "status": "success", "exit_code": 0, "wall_seconds": 0.1} | fields)


@pytest.mark.parametrize(
    ("stored", "replayed", "kinds"),
    [
        ({}, {}, ()),
        ({}, {"wall_seconds": 0.2}, ()),
        ({}, {"wall_seconds": 0.9}, ("timing",)),
        ({"wall_seconds": 2.0}, {"wall_seconds": 0.1}, ("timing",)),
        ({}, {"peak_memory_bytes": 5}, ()),
        ({"stdout": "1"}, {"stdout": "2"}, ("output",)),
        ({}, {"stderr": "warning"}, ("output",)),
        ({}, {"stdout_truncated": True}, ("output",)),
        ({"status": "error", "exit_code": 1}, {"status": "error", "exit_code": 2}, ("status",)),
        ({}, {"status": "memory", "exit_code": None, "stdout": "half"}, ("status",)),
        ({"status": "timeout", "stdout": "1"}, {"status": "timeout", "stdout": "12"}, ()),
    ],
)
def test_kinds_of_differences(stored: dict, replayed: dict, kinds: tuple[str, ...]) -> None:
    assert difference_kinds(result(**stored), result(**replayed)) == kinds


@pytest.mark.parametrize(
    ("stored", "replayed", "cause"),
    [
        ({"wall_seconds": 1.6, "cpu_seconds": 1.5}, {"wall_seconds": 2.0, "cpu_seconds": 1.9}, "near its time limit"),
        ({"wall_seconds": 0.4, "cpu_seconds": 0.3}, {"wall_seconds": 2.0, "cpu_seconds": 0.5}, "a busy machine"),
        ({"wall_seconds": 0.4, "cpu_seconds": 0.3}, {"wall_seconds": 2.0, "cpu_seconds": 2.0}, None),  # it is slower
        ({"wall_seconds": 0.1, "cpu_seconds": 0.01}, {"wall_seconds": 2.0, "cpu_seconds": 0.01}, None),  # it hangs
    ],
)
def test_a_time_limit_that_only_one_ran_into(stored: dict, replayed: dict, cause: str | None) -> None:
    ended, timed_out = result(**stored), result(status="timeout", exit_code=None, **replayed)
    assert cause_of_timeout(ended, timed_out, 2.0) == cause_of_timeout(timed_out, ended, 2.0) == cause
    assert cause_of_timeout(ended, ended, 2.0) is None
    assert cause_of_timeout(result(status="memory", exit_code=None, **stored), timed_out, 2.0) is None


def test_limits_that_are_not_given_stay_as_they_were_stored() -> None:
    stored = Limits(wall_seconds=2.0, memory_bytes=64 << 20, processes=3)
    assert SandboxSetting().limits(stored) == stored
    lowered = SandboxSetting(memory_bytes=32 << 20).limits(stored)
    assert lowered == stored.model_copy(update={"memory_bytes": 32 << 20})


def test_images_are_compared_by_what_both_hold() -> None:
    recorded = {"python": "3.12.1", "numpy": "2.5.5", "gone": "1"}
    used = {"python": "3.12.1", "numpy": "2.4.6", "new": "2"}
    expected = {"numpy": ("2.5.5", "2.4.6"), "gone": ("1", "-"), "new": ("-", "2")}
    assert image_differences(recorded, used) == expected
    assert image_differences(None, used) == {}
