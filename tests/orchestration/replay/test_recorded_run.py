"""Which groups a stored step had."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.storage.frames import ArchiveError
from actors.storage.trained_steps import TrainedSteps
from actors.storage.writer import ArchiveWriter
from orchestration.replay.recorded_run import RecordedRun
from orchestration.run_folder import write_recipe
from policies.options import DynamicSamplingOptions
from policies.trajectory import WeightsVersion
from tests.orchestration.replay.test_learner import recipe, rollout


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_an_asynchronous_step_has_the_groups_that_the_ledger_says_it_took(tmp_path: Path, max_staleness: int) -> None:
    made = recipe()
    stages = {"rl-1": made.stages["rl-1"].model_copy(update={"max_staleness": max_staleness})}
    write_recipe(made.model_copy(update={"stages": stages}), tmp_path)
    writer, ledger = ArchiveWriter(tmp_path / "archive"), TrainedSteps(tmp_path / "archive")
    for step, group in ((1, 0), (0, 1), (1, 1), (0, 0)):
        for sample in (1, 0):
            writer.append(rollout("rl-1", step, group, sample))
    for step, taken in enumerate((["rl-1/0/0", "rl-1/1/0"], ["rl-1/0/1", "rl-1/1/1"])):
        ledger.append("rl-1", step, WeightsVersion(0, step + 1), [], taken, "")
    writer.close()
    ledger.close()
    steps = {
        step: [[each.id for each in group] for group in groups] for step, groups in RecordedRun(tmp_path).steps("rl-1")
    }
    where = {0: ((0, 0), (1, 0)), 1: ((0, 1), (1, 1))} if max_staleness else {0: ((0, 0), (0, 1)), 1: ((1, 0), (1, 1))}
    assert steps == {
        step: [[f"rl-1/{of}/{group}/{sample}" for sample in (0, 1)] for of, group in groups]
        for step, groups in where.items()
    }


def test_groups_that_a_step_added_before_it_was_done_again_are_none_of_its(tmp_path: Path) -> None:
    """Dynamic sampling added two groups to step 0; its learner died, and the second time it added but one."""
    made = recipe()
    refilled = {"dynamic_sampling": DynamicSamplingOptions()}
    stages = {"rl-1": made.stages["rl-1"].model_copy(update=refilled)}
    write_recipe(made.model_copy(update={"stages": stages}), tmp_path)
    writer, ledger = ArchiveWriter(tmp_path / "archive"), TrainedSteps(tmp_path / "archive")
    for step, group in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)):
        writer.append(rollout("rl-1", step, group, 0))
    ledger.append("rl-1", 0, WeightsVersion(1, 1), [], ["rl-1/0/0", "rl-1/0/1", "rl-1/0/2"], "")
    writer.close()
    ledger.close()
    steps = {step: [group[0].group for group in groups] for step, groups in RecordedRun(tmp_path).steps("rl-1")}
    assert steps == {0: ["rl-1/0/0", "rl-1/0/1", "rl-1/0/2"], 1: ["rl-1/1/0", "rl-1/1/1"]}


@pytest.mark.parametrize("group", ["rl-1/0/x", "rl-1/0/²", "rl-1/0/999999999999", "rl-1/0/-1", "../..\n"])
def test_a_group_without_a_number_of_a_run_is_named(tmp_path: Path, group: str) -> None:
    write_recipe(recipe(), tmp_path)
    writer = ArchiveWriter(tmp_path / "archive")
    writer.append(rollout("rl-1", 0, 0, 0).model_copy(update={"group": group}))
    writer.close()
    with pytest.raises(ArchiveError, match=r"rl-1/0/0/0 is of group .* whose name does not end in a number"):
        list(RecordedRun(tmp_path).steps("rl-1"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", "{]\n{}\n", "metrics.jsonl, line 1 is not JSON"),
        ("metrics.jsonl", '{"kind": "step", "stage": "rl-1", "step": "first"}\n', "without a stage and a step"),
        ("metrics.jsonl", '{"kind": "step"}\n', "without a stage and a step"),
        ("archive/trained.jsonl", "[1]\n", "trained.jsonl, line 1 is no trained step"),
        ("archive/trained.jsonl", "[" * 100_000 + "\n", "trained.jsonl, line 1 is not JSON"),
    ],
)
def test_a_damaged_file_beside_the_segments_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    made = recipe()
    stages = {"rl-1": made.stages["rl-1"].model_copy(update={"max_staleness": 1})}
    write_recipe(made.model_copy(update={"stages": stages}), tmp_path)
    writer = ArchiveWriter(tmp_path / "archive")
    writer.append(rollout("rl-1", 0, 0, 0))
    writer.close()
    (tmp_path / name).write_text(content)
    run = RecordedRun(tmp_path)
    with pytest.raises(ArchiveError, match=message):
        run.metrics("step", "rl-1")
        list(run.steps("rl-1"))
