"""A stage on a machine that is twice as slow as its cost model says: the replay finds that out, and the makespans."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.storage.writer import ArchiveWriter
from orchestration.cli import app
from orchestration.metrics import JsonlMetrics
from orchestration.recipe import RecipeError
from orchestration.replay.recorded_run import RecordedRun
from orchestration.replay.schedule import recorded_steps, with_load
from orchestration.run_folder import write_recipe
from orchestration.simulated_cast import workload_of
from orchestration.simulation import Setting, rehearse_twice
from policies.dialogue import DialogueLimits
from tests.orchestration.small_recipe import small_recipe
from tests.policies.test_recorded_workload import played

STEPS, LOAD, OVERHEAD_S = 4, 2.0, 0.5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that took what a rehearsal at the load took, and half a second more for each step."""
    recipe, folder = small_recipe(), tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    write_recipe(recipe, folder)
    limits = DialogueLimits(**recipe.stages["rl"].limits.model_dump())
    writer = ArchiveWriter(folder / "archive")
    for step in range(STEPS):
        for group in range(4):
            for sample in range(8):
                writer.append(played(f"rl/{step}/{group}/{sample}", workload_of(recipe), limits))
    writer.close()
    real = rehearse_twice(Setting(recipe=with_load(recipe, LOAD), stage="rl", steps=STEPS, balancer=recipe.balancer))
    with JsonlMetrics(folder / "metrics.jsonl") as metrics:
        for step, figures in enumerate(real.steps, 1):
            longer = figures["time_rollout_s"] + OVERHEAD_S
            busy = {
                name: share * figures["time_rollout_s"] / longer
                for name, share in figures.items()
                if name.startswith("busy_share")
            }
            metrics.write("step", "rl", step, **figures | busy | {"time_rollout_s": longer})
    return folder


def replay(run: Path, *options: str) -> tuple[int, dict]:
    done = CliRunner().invoke(app, ["replay", "schedule", str(run), "--json", *options])
    assert done.stdout, f"{done.output}{done.exception}"
    return done.exit_code, json.loads(done.stdout)


def test_load_and_overhead_are_found_and_steps_that_were_not_fitted_are_predicted(run: Path) -> None:
    code, told = replay(run)
    assert told["fitted_steps"] == 2
    assert told["load"] == pytest.approx(LOAD, rel=0.05)
    assert told["overhead_s"] == pytest.approx(OVERHEAD_S, rel=0.5)
    assert (code, told["good"]) == (0, True) and abs(told["error"]) < 0.05
    predicted = told["predicted"]["worst_case"]["makespans_s"]
    assert len(predicted) == len(told["recorded"]["makespans_s"]) == STEPS
    assert told["error"] == pytest.approx(sum(predicted[2:]) / sum(told["recorded"]["makespans_s"][2:]) - 1)


def test_what_the_machine_did_to_a_prediction_is_told_from_what_the_simulator_did(run: Path, tmp_path: Path) -> None:
    calm = replay(run)[1]
    assert abs(calm["drift"]) < 0.05 and abs(calm["error_at_own_load"]) < 0.05
    busier = shutil.copytree(run, tmp_path / "busier")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    slower = [line | {"time_rollout_s": (1.4 if line["step"] > 2 else 1.0) * line["time_rollout_s"]} for line in lines]
    (busier / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in slower))
    told = replay(busier)[1]
    assert told["error"] < -0.2, "the first half did not know of the second"
    assert told["drift"] == pytest.approx(0.4 + 1.4 * calm["drift"])
    assert abs(told["error_at_own_load"]) < abs(told["error"]) / 2
    assert replay(run, "--load", "2")[1]["drift"] is None, "nothing was fitted"


def test_a_wrong_load_predicts_badly_and_says_so(run: Path) -> None:
    code, told = replay(run, "--load", "1")
    assert (code, told["good"], told["fitted_steps"], told["overhead_s"]) == (1, False, 0, 0.0)
    assert told["error"] < -0.3


def test_strategies_and_other_clusters_stand_beside_the_record(run: Path) -> None:
    code, told = replay(run, "--load", "2", "--strategies", "static,predictive", "--engines", "6")
    assert (code, told["error"]) == (0, None)  # nothing to judge them by
    assert list(told["predicted"]) == ["static", "predictive"]
    more = told["predicted"]["predictive"]["judged_mean_s"]
    fewer = replay(run, "--load", "2", "--strategies", "predictive", "--engines", "1")[1]
    assert more < told["recorded"]["judged_mean_s"] < fewer["predicted"]["predictive"]["judged_mean_s"]
    small = replay(run, "--load", "2", "--kv-tokens", "4096")[1]["predicted"]["worst_case"]
    own = replay(run, "--load", "2")[1]["predicted"]["worst_case"]
    assert small["queue_wait_mean_s"] > own["queue_wait_mean_s"]


def test_repeats_widen_what_counts_as_good(run: Path, tmp_path: Path) -> None:
    repeat = shutil.copytree(run, tmp_path / "repeat")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    slower = [line | {"time_rollout_s": 1.5 * line["time_rollout_s"]} for line in lines]
    (repeat / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in slower))
    _, told = replay(run, "--load", "1", "--repeat", str(repeat))
    assert told["spread"] == pytest.approx(0.5 / 1.25)
    assert told["allowed"] == pytest.approx(0.8) and told["good"]


def test_the_table_says_how_good_the_prediction_is(run: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "schedule", str(run)])
    text = " ".join(done.stdout.split())
    assert "worst_case: predicted" in text and "no repeats were given; good within 10.0%" in text


def test_a_run_without_metrics_has_nothing_to_compare_with(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(RecipeError, match="has no metrics of stage 'rl'"):
        recorded_steps(RecordedRun(copy), "rl", 3)
