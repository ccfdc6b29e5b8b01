"""What changed between two checkpoints, on problems that both were asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.storage.writer import ArchiveWriter
from env.tool_call import ToolResult
from orchestration.archive.changes import Changes, NothingInCommon, compare
from orchestration.cli import app
from policies.trajectory import Problem, Trajectory
from tests.orchestration.archive.dialogues import PROMPT, decode, failed_call, text_span, text_trajectory

BEFORE, AFTER = "evaluation-sft", "evaluation-rl"


def answer(stage: str, problem: str, sample: int, correct: bool, **fields: object) -> Trajectory:
    """A rollout of one turn, or of two with a call in the first."""
    said = text_span("model", "I say 42.", surprising={0: -2.0} if stage == BEFORE else None)
    results = fields.pop("results", ())
    spans = [PROMPT, said] if not results else [PROMPT, said, text_span("tool", "out"), said]
    group = f"{stage}/0/{problem}"
    return text_trajectory(
        sample,
        *spans,
        results=results,  # type: ignore[arg-type]
        correct=correct,
        stage=stage,
        group=group,
        id=f"{group}/{sample}",
        problem=Problem(id=problem, question="?", gold="42", family="sums"),
    )


@pytest.fixture(scope="module")
def sides() -> tuple[list[Trajectory], list[Trajectory]]:
    """Two samples each; `a` is gained, `b` half lost, `c` stays, `old` and `new` are asked of one side only."""
    fine, failed = ToolResult(id="fine", status="success"), failed_call("error", stderr="NameError: x", exit_code=1)
    before = [
        *(answer(BEFORE, "a", sample, False, results=[failed]) for sample in range(2)),
        *(answer(BEFORE, "b", sample, True) for sample in range(2)),
        *(answer(BEFORE, "c", sample, True) for sample in range(2)),
        answer(BEFORE, "old", 0, False),
    ]
    after = [
        *(answer(AFTER, "a", sample, True, results=[fine]) for sample in range(2)),
        *(answer(AFTER, "b", sample, sample == 0) for sample in range(2)),
        *(answer(AFTER, "c", sample, True) for sample in range(2)),
        answer(AFTER, "new", 0, True),
    ]
    return before, after


def test_problems_are_paired_and_changes_come_with_examples(sides: tuple[list[Trajectory], list[Trajectory]]) -> None:
    found = compare(*sides, decode)
    assert (found.problems, found.better, found.worse) == (3, 1, 1)
    assert found.difference == pytest.approx((1.0 - 0.5 + 0.0) / 3) and found.low < found.difference < found.high
    (gained,), (lost,) = found.gained, found.lost
    assert (gained.problem, gained.before, gained.after) == ("a", 0.0, 1.0)
    assert (gained.before_example, gained.after_example) == (f"{BEFORE}/0/a/0", f"{AFTER}/0/a/0")
    assert (lost.problem, lost.before, lost.after) == ("b", 1.0, 0.5)
    assert (lost.before_example, lost.after_example) == (f"{BEFORE}/0/b/0", f"{AFTER}/0/b/1")


def test_habits_are_those_on_the_common_problems(sides: tuple[list[Trajectory], list[Trajectory]]) -> None:
    found = compare(*sides, decode)
    for side, right, failed, forks in ((found.before, 2 / 3, 1.0, 8), (found.after, 2.5 / 3, 0.0, 0)):
        assert (side.trajectories, side.failed_share) == (6, failed), "old and new are left out"
        assert side.right_share == pytest.approx(right)
        assert side.calls_mean == pytest.approx(2 / 6) and side.turns_mean == pytest.approx(8 / 6)
        assert side.forking_share == pytest.approx(forks / (8 * len("I say 42.")))
    assert [(each.what, each.before, each.after) for each in found.errors] == [("error NameError", 2, 0)]
    assert [(each.what, each.before, each.after) for each in found.forking_tokens] == [("I", 8, 0)]


def test_sides_without_a_common_problem_are_refused(sides: tuple[list[Trajectory], list[Trajectory]]) -> None:
    with pytest.raises(NothingInCommon, match="no problem was answered by both"):
        compare(sides[0][-1:], sides[1], decode)


def test_the_command_takes_checkpoints_by_their_names(
    sides: tuple[list[Trajectory], list[Trajectory]], tmp_path: Path
) -> None:
    writer = ArchiveWriter(tmp_path / "archive")
    for trajectory in [*sides[0], *sides[1]]:
        writer.append(trajectory)
    writer.close()

    def run(*options: str) -> str:
        done = CliRunner().invoke(app, ["analyse", str(tmp_path), *options])
        return done.output

    told = json.loads(run("--between", "sft,rl", "--json"))
    assert Changes.model_validate(told).problems == 3 and told["after"]["stage"] == AFTER
    assert "3 problems that both were asked" in run("--between", f"sft,{AFTER}")
    assert "no stage is called 'dpo'" in " ".join(run("--between", "sft,dpo").split())
    assert "takes two stages" in run("--between", "sft,sft")
