"""The analysis counts what is in the trajectories; each figure here is counted by hand."""

from __future__ import annotations

import math

import pytest

from actors.storage.reader import Archive
from orchestration.archive.analysis import Analysis, analyse, error_kind
from orchestration.archive.stats import stage_stats
from policies.trajectory import Trajectory
from tests.orchestration.archive.dialogues import decode


@pytest.fixture(scope="module")
def found(dialogues: list[Trajectory]) -> Analysis:
    return analyse(dialogues, decode)


def test_tool_errors_are_counted_apart_in_correct_and_wrong_trajectories(found: Analysis) -> None:
    (stage,) = found.stages
    assert (stage.correct.trajectories, stage.correct.calls, stage.correct.failed) == (2, 3, 1)
    assert (stage.wrong.trajectories, stage.wrong.calls, stage.wrong.failed) == (2, 2, 2)
    assert (stage.correct.failed_share, stage.wrong.failed_share) == (1 / 3, 1.0)
    assert (stage.correct.turns, stage.wrong.turns) == (5, 4)
    assert [(step.stage, step.step, step.correct, step.wrong) for step in found.steps] == [
        ("rl", 0, stage.correct, stage.wrong)
    ]


def test_kinds_of_error_come_with_counts_and_an_example(found: Analysis) -> None:
    kinds = {(kind.status, kind.kind): kind for kind in found.errors}
    assert set(kinds) == {("error", "NameError"), ("timeout", ""), ("invalid_call", "unknown tool '[/x]\x1b[2J'")}
    name_error = kinds["error", "NameError"]
    assert (name_error.in_correct, name_error.in_wrong, name_error.by_stage) == (1, 0, {"rl": 1})
    assert (name_error.example, name_error.text) == ("rl/0/0/1", "NameError: name 'show' is not defined")
    assert kinds["timeout", ""].text == "The program ran longer than its limit of 2 seconds."


def test_an_exit_without_an_exception_is_a_kind_of_its_own(dialogues: list[Trajectory]) -> None:
    record = dialogues[1].calls[0]
    exited = record.model_copy(update={"result": record.result.model_copy(update={"stderr": "", "exit_code": 3})})
    assert error_kind(exited) == ("exit code 3", "")


def test_turns_are_counted_by_their_number_of_calls(found: Analysis) -> None:
    assert found.calls_per_turn == {"rl": {0: 4, 1: 5}}


def test_surprisal_is_told_by_position(found: Analysis) -> None:
    positions = {position.where: position for position in found.positions}
    first = positions["first turn, opening"]  # "Run it.", "Show it.", "Loop.", "</script" of 7, 8, 5 and 8 tokens
    assert (first.tokens, first.forks) == (28, 1)
    assert first.surprisal_mean == pytest.approx((27 * 0.1 + 2.0) / 28)
    assert positions["first turn, later"].tokens == len("><b>13</b>")
    reaction = positions["after a failed call, opening"]  # "Print it", "{bad", "13"
    assert (reaction.tokens, reaction.forks) == (8 + 4 + 2, 3)
    assert positions["after a failed call, later"].forks == 1  # within the turn that began "Print it"
    assert positions["after a call, opening"].tokens == 2 * 8
    assert positions["after a call, later"].surprisal_mean == pytest.approx(0.1)


def test_forking_tokens_come_with_counts_and_the_most_surprising_example(found: Analysis) -> None:
    tokens = {token.token: token for token in found.forking_tokens}
    assert set(tokens) == {"S", "P", "n", "{", "3"}
    three = tokens["3"]
    assert (three.occurrences, three.forks, three.after_tool) == (2, 1, 1)
    assert three.fork_surprisal_mean == pytest.approx(4.0)
    assert (three.example, three.text) == ("rl/0/0/2", "1«3»")
    assert tokens["S"].after_tool == 0
    assert tokens["n"].text == "Print it — «n»ow."


def test_a_token_forks_below_one_half(dialogues: list[Trajectory]) -> None:
    assert analyse(dialogues[:1], decode).forking_tokens == []
    assert math.exp(-0.1) > 0.5


def test_statistics_come_from_the_index_and_agree_with_the_trajectories(
    archive: Archive, dialogues: list[Trajectory]
) -> None:
    (stage,) = stage_stats(archive.rows)
    assert (stage.trajectories, stage.groups, stage.steps, stage.solved_share) == (4, 1, 1, 0.5)
    assert stage.tokens == sum(len(span.ids) // 4 for each in dialogues for span in each.spans)
    assert (stage.calls, stage.failed_calls) == (5, 3)
    assert (stage.failed_share_in_correct, stage.failed_share_in_wrong) == (1 / 3, 1.0)
    assert stage.statuses == {"success": 2, "error": 1, "timeout": 1, "invalid_call": 1}
    assert stage.bytes_per_token == stage.bytes / stage.tokens
    assert stage_stats([]) == []
