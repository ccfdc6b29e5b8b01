"""`greenroom simulate --workload ARCHIVE`: stored rollouts drive a simulation as the recipe's own workload does."""

import json
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from actors.storage.frames import ArchiveError
from actors.storage.reader import Archive
from actors.storage.writer import ArchiveWriter
from orchestration.archived_workload import archived_workload, workload_for
from orchestration.cli import app
from orchestration.recipe import RecipeError
from orchestration.simulated_cast import workload_of
from policies.dialogue import DialogueLimits
from tests.orchestration.small_recipe import small_recipe
from tests.policies.test_recorded_workload import played


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the small recipe's workload says, played and stored."""
    recipe, folder = small_recipe(), tmp_path_factory.mktemp("run")
    limits = DialogueLimits(**recipe.stages["rl"].limits.model_dump())
    writer = ArchiveWriter(folder / "archive")
    for group in range(4):
        for sample in range(8):
            writer.append(played(f"rl/0/{group}/{sample}", workload_of(recipe), limits))
    writer.close()
    return folder


def simulated(folder: Path, *arguments: str) -> dict:
    recipe = folder / "small.toml"
    recipe.write_text(tomli_w.dumps(small_recipe().model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    done = CliRunner().invoke(app, ["simulate", str(recipe), "--json", "--page", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_archive_of_what_a_recipe_says_gives_the_same_run(archive: Path, tmp_path: Path) -> None:
    own, stored = simulated(tmp_path), simulated(tmp_path, "--workload", str(archive))
    assert stored["trace_hash"] == own["trace_hash"]
    figures, expected = (each["strategies"]["worst_case"] for each in (stored, own))
    for name in ("makespan_s", "tool_calls", "response_tokens_mean", "lower_bound_s"):
        assert figures[name] == pytest.approx(expected[name]), name


def test_the_only_stage_of_an_archive_is_taken_for_one_of_another_name(archive: Path) -> None:
    assert Archive(archive / "archive").stages() == ["rl"]
    recipe = small_recipe()
    renamed = recipe.model_copy(update={"stages": {"other": recipe.stages["rl"]}})
    assert workload_for(renamed, "other", archive).rollout("other/0/2/1") == archived_workload(
        Archive(archive / "archive")
    ).rollout("rl/0/2/1")


def test_an_archive_that_can_not_be_used_is_refused_with_what_would_help(archive: Path, tmp_path: Path) -> None:
    recipe = small_recipe()
    with pytest.raises(RecipeError, match=r"--workload .*there is no archive at"):
        workload_for(recipe, "rl", tmp_path)
    with pytest.raises(RecipeError, match=r"no rollouts of stage 'rl-9'; it has rl"):
        workload_for(recipe, "rl", archive, "rl-9")
    with pytest.raises(RecipeError, match="stage 'nowhere' can't be simulated; stages of reinforcement are rl"):
        workload_for(recipe, "nowhere", archive)
    stage = recipe.stages["rl"]
    short = stage.model_copy(update={"limits": stage.limits.model_copy(update={"max_tokens": 40})})
    with pytest.raises(RecipeError, match=r"longest prompt has \d+ tokens, but stages\.rl\.limits\.max_tokens is 40"):
        workload_for(recipe.model_copy(update={"stages": {"rl": short}}), "rl", archive)
    with pytest.raises(ArchiveError, match="no rollouts of stage 'x'"):
        archived_workload(Archive(archive / "archive"), {"rl": "x"})
