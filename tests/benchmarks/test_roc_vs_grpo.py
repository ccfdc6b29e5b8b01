"""The comparison compares what it says: the arms differ in resampling alone, and intervals are Student's."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import tomli_w

from benchmarks.command import Failed
from benchmarks.roc_vs_grpo import (
    ARMS,
    LAST_STEPS,
    arm_recipe,
    compare,
    compared_outcome,
    interval,
    outcome,
    panels,
    sft_recipe,
    train,
)
from benchmarks.roc_vs_grpo_plot import draw
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from policies.stages import ReinforcementOptions


def recipe(data) -> Recipe:
    return validate_recipe(data, "a test")


def stages(arm: str, model: Path) -> list[ReinforcementOptions]:
    found = recipe(arm_recipe(arm, 5, model)).stages.values()
    return [stage for stage in found if isinstance(stage, ReinforcementOptions)]


def test_both_arms_sample_the_same_and_differ_in_resampling_alone(tmp_path: Path) -> None:
    pairs = list(zip(*(stages(arm, tmp_path) for arm in ARMS), strict=True))
    assert len(pairs) == 2
    for roc, plain in pairs:
        assert roc.sampled == plain.sampled == plain.group == 2 * roc.group
        assert (roc.resampling.rule, plain.resampling.rule) == ("roc", "none")
        ours = plain.model_copy(
            update={
                "group": roc.group,
                "resampling": roc.resampling,
                "objective": plain.objective.model_copy(update={"name": "grpo_roc"}),
            }
        )
        assert ours == roc


def test_the_shared_stage_is_that_of_the_quickstart() -> None:
    assert list(recipe(sft_recipe(3)).stages) == ["sft"] and recipe(sft_recipe(3)).seed == 3


def test_intervals_are_those_of_students_t() -> None:
    # By hand: mean 2, sample deviation 1, and 4.303 / sqrt(3) of it to each side.
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and (low, high) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


def write_run(folder: Path, errors: float) -> Path:
    folder.mkdir()
    records = [{"kind": "evaluation", "stage": "start", "step": 0}] + [
        {
            "kind": "step",
            "step": step,
            "tool_error_share_in_correct": errors if step >= 12 else 1.0,
            "response_tokens_mean": 40.0,
            "reward_mean": 0.5,
        }
        for step in range(12 + LAST_STEPS)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    end = {"tool_error_share_in_correct": errors, "mean_response_tokens": 40.0, "accuracy": 0.6}
    (folder / "summary.json").write_text(json.dumps({"stages": [end | {"accuracy": 0.1}, end]}))
    return folder


def test_the_table_pairs_seeds_and_the_plot_is_whole(tmp_path: Path) -> None:
    errors = {"grpo_roc": (0.1, 0.2), "grpo": (0.3, 0.4)}
    outcomes = {
        arm: [outcome(write_run(tmp_path / f"{arm}-{value}", value)) for value in values]
        for arm, values in errors.items()
    }
    table = compare(outcomes)
    for label in ("tool errors in correct trajectories", "tool errors in correct trajectories, held out"):
        assert table[label]["difference"] == pytest.approx((-0.2, -0.2, -0.2))  # the same in both seeds
        assert table[label]["grpo"].low < 0.3 and table[label]["grpo"].high > 0.4
    assert table["accuracy, held out"]["grpo_roc"].mean == 0.6
    draw(tmp_path / "plot.svg", panels(outcomes))
    tree = ElementTree.parse(tmp_path / "plot.svg")
    lines = tree.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3 * 2 * (2 + 1)  # panels, arms, two seeds and their mean


def test_a_finished_run_is_taken_only_for_the_one_with_its_settings(tmp_path: Path) -> None:
    data = sft_recipe(3)
    folder = tmp_path / data["name"]
    folder.mkdir()
    (folder / "summary.json").write_text('{"finished": true}')
    with pytest.raises(Failed, match="other settings"):
        train(data, tmp_path)  # whose it is can't be told
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / f"{data['name']}.toml").write_text(tomli_w.dumps(data))
    assert train(data, tmp_path) == folder
    with pytest.raises(Failed, match="other settings"):
        train(data | {"learner": {"threads": 1}}, tmp_path)


def test_a_run_without_a_share_of_tool_errors_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "grpo-0", 0.5)
    assert compared_outcome(folder) == outcome(folder)
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace(": 0.5", ": null"))
    with pytest.raises(Failed, match=r"grpo-0: step .* has no tool_error_share_in_correct"):
        compared_outcome(folder)
