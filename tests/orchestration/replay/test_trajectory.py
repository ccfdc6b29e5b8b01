"""`greenroom replay trajectory`: whole on a pipe, as JSON, and a clear word for what is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestration.cli import app
from orchestration.recipe import ModelSettings, RecipeError, ScratchModel
from orchestration.replay.branching import stage_limits
from orchestration.replay.recorded_run import RecordedRun
from policies.trajectory import Trajectory
from tests.orchestration.archive.conftest import archive, dialogues  # noqa: F401
from tests.orchestration.small_recipe import small_recipe


def run(archive, *arguments: object) -> Result:  # noqa: F811
    return CliRunner().invoke(app, ["replay", "trajectory", str(archive.folder), *map(str, arguments)])


def test_steps_show_versions_log_probabilities_calls_and_results(archive) -> None:  # noqa: F811
    done = run(archive, "rl/0/0/1", "--tokens")
    assert done.exit_code == 0
    for told in ("weights 0.3", "-2.0000", "13.5%", "NameError", "print(1)", "42"):
        assert told in done.stdout, told


def test_json_holds_every_token(archive, dialogues: list[Trajectory]) -> None:  # noqa: F811
    told = json.loads(run(archive, "rl/0/0/2", "--json").stdout)
    assert (told["id"], len(told["spans"]), len(told["calls"])) == ("rl/0/0/2", len(dialogues[2].spans), 2)


def test_what_is_not_there_is_named(archive, tmp_path: Path) -> None:  # noqa: F811
    done = run(archive, "rl/9/9/9")
    assert isinstance(done.exception, RecipeError) and "no trajectory 'rl/9/9/9'" in str(done.exception)
    done = run(archive, "rl/0/0/1", "--from-turn", "1")
    assert isinstance(done.exception, RecipeError) and "holds no recipe.toml" in str(done.exception)


@pytest.mark.parametrize("option", [("--checkpoint", "rl"), ("--temperature", "0.5")], ids=lambda option: option[0])
def test_options_of_a_branch_need_a_place_where_it_begins(archive, option: tuple[str, str]) -> None:  # noqa: F811
    done = run(archive, "rl/0/0/1", *option)
    assert isinstance(done.exception, RecipeError) and "--from-turn" in str(done.exception)


def test_weights_are_those_that_a_stage_began_with_or_that_an_evaluation_was_of(archive, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(archive.folder, tmp_path / "archive")
    two, recorded = small_recipe(), RecordedRun(tmp_path)
    two = two.model_copy(
        update={
            "stages": {"rl-1": two.stages["rl"], "rl-2": two.stages["rl"]},
            "model": ModelSettings(scratch=ScratchModel()),
        }
    )
    with pytest.raises(RecipeError, match=r"the model that the run started from is not in .*; say with --from where"):
        recorded.weights_of(two, "rl-1", "--from")
    for folder in ("model", "checkpoints/rl-1", "checkpoints/rl-2"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").touch()
    began_with = {
        "evaluation-start": "model",
        "rl-1": "model",
        "evaluation-rl-1": "checkpoints/rl-1",
        "rl-2": "checkpoints/rl-1",
        "evaluation-rl-2": "checkpoints/rl-2",
    }
    for stage, folder in began_with.items():
        assert recorded.weights_of(two, stage, "--checkpoint") == tmp_path / folder


def test_limits_are_those_of_the_stage_or_of_the_evaluation_after_it() -> None:
    recipe = small_recipe()
    assert stage_limits(recipe, "rl")[0].max_turns == 6
    assert stage_limits(recipe, "evaluation-rl") == (recipe.evaluation.limits, recipe.evaluation.temperature)
    with pytest.raises(RecipeError, match="no stage 'sft' that samples"):
        stage_limits(recipe, "sft")
