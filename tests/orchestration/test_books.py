"""Whether a run's books balance: what was rolled out and trained, against the problems that were due."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.storage.trained_steps import TrainedSteps
from actors.storage.writer import ArchiveWriter
from orchestration.books import books_fault
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from policies.curriculum import ProblemStream
from policies.grouping import TrainedGroup
from policies.stages import ReinforcementOptions
from policies.trajectory import Problem, WeightsVersion
from tests.orchestration.small_recipe import small_recipe
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory

DATASET = {"source": "dataset", "dataset": {"name": "gsm8k"}}
POSED = [Problem(id=f"p{number}", question="?", gold="1") for number in range(5)]


def recipe(**stage: Any) -> Recipe:
    data = small_recipe().model_dump(mode="json", exclude_none=True)
    data["stages"]["rl"] |= {"steps": 3, "prompts": 2, "group": 2} | stage
    return validate_recipe(data, "a recipe with books")


def problems_due(made: Recipe) -> list[Problem]:
    options = made.stages["rl"]
    assert isinstance(options, ReinforcementOptions)
    posed = POSED if options.problems.source == "dataset" else ()
    stream = ProblemStream(options.problems, run_seed=made.seed, held_out=False, problems=posed)
    return [stream.problem(position) for position in range(options.steps * options.prompts)]


def write_run(folder: Path, made: Recipe, problems: list[Problem], steps: int) -> None:
    """A run that has done so many steps with these problems."""
    options = made.stages["rl"]
    assert isinstance(options, ReinforcementOptions)
    (folder / "data").mkdir()
    (folder / "data" / "rl.jsonl").write_text("".join(problem.model_dump_json() + "\n" for problem in POSED))
    writer, ledger = ArchiveWriter(folder / "archive"), TrainedSteps(folder / "archive")
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in range(steps):
            groups = [f"rl/{step}/{index}" for index in range(options.prompts)]
            for index, group in enumerate(groups):
                problem = problems[step * options.prompts + index]
                for sample in range(options.sampled):
                    place = {"id": f"{group}/{sample}", "group": group, "sample": sample, "step": step}
                    writer.append(trajectory(PROMPT, MODEL, problem=problem, **place))
            trained = [TrainedGroup(group, "p", (f"{group}/0",), (1.0,)) for group in groups]
            ledger.append("rl", step, WeightsVersion(0, step + 1), trained, groups, "digest")
            metrics.write(json.dumps({"kind": "step", "stage": "rl", "step": step + 1}) + "\n")
    writer.close()
    ledger.close()


@pytest.mark.parametrize("problems", [{}, DATASET], ids=["arithmetic", "data set"])
def test_the_problems_that_were_due_rolled_out_in_full_balance(tmp_path: Path, problems: dict[str, Any]) -> None:
    made = recipe(problems=problems)
    write_run(tmp_path, made, problems_due(made), steps=3)
    assert books_fault(made, tmp_path) == ""


@pytest.mark.parametrize("problems", [{}, DATASET], ids=["arithmetic", "data set"])
def test_another_problem_than_the_one_that_was_due_is_told(tmp_path: Path, problems: dict[str, Any]) -> None:
    made = recipe(problems=problems)
    due = problems_due(made)
    write_run(tmp_path, made, [*due[:3], due[4], due[3], due[5]], steps=3)
    assert books_fault(made, tmp_path).startswith("group rl/1/1 was not rolled out in full")


def test_a_step_that_is_missing_is_told(tmp_path: Path) -> None:
    made = recipe()
    write_run(tmp_path, made, problems_due(made), steps=2)
    assert books_fault(made, tmp_path).startswith("group rl/2/0 was not rolled out in full")


def test_a_stage_that_moved_on_owes_no_further_steps(tmp_path: Path) -> None:
    made = recipe(move_on={"clip_share": 0.1})
    due = problems_due(made)
    write_run(tmp_path, made, due, steps=2)
    assert books_fault(made, tmp_path) == ""
    other = tmp_path / "other"
    other.mkdir()
    write_run(other, made, [due[0], due[0], *due[2:]], steps=2)
    assert books_fault(made, other).startswith("group rl/0/1 was not rolled out in full")


def test_with_dynamic_sampling_nobody_knows_what_was_due_but_what_was_learned_twice_is_told(tmp_path: Path) -> None:
    made = recipe(dynamic_sampling={"rounds": 1})
    due = problems_due(made)
    write_run(tmp_path, made, [*due[:2], due[3], due[4], due[5], due[5]], steps=3)
    assert books_fault(made, tmp_path) == ""
    ledger = TrainedSteps(tmp_path / "archive")
    ledger.append("rl", 3, WeightsVersion(0, 4), [TrainedGroup("rl/0/0", "p", ("rl/0/0/0",), (1.0,))], [], "digest")
    ledger.close()
    assert books_fault(made, tmp_path) == "groups that were learned from twice: rl/0/0"
