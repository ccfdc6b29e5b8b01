"""`greenroom simulate`: figures that agree with a count of one's own, a page, and clear refusals."""

import json
import re
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from actors.system.actor import HandlerFailed
from env.tool_call import ToolResult
from orchestration import drill, rehearsing
from orchestration.calibrate import Calibration
from orchestration.cli import app
from orchestration.invariants import Violation
from orchestration.recipe import RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.side_by_side import WorkerLost
from orchestration.simulate import STRATEGIES, calibrated, chosen_strategies, rescaled
from orchestration.simulated_cast import engine_of, workload_of
from orchestration.simulation import Rehearsal, Setting
from policies.balancing import BalancerOptions, longest_lease
from policies.batching_records import BatchingLimits
from policies.cost_fitting import FitError
from policies.dialogue import DialogueLimits
from policies.makespan_bound import lower_bound
from policies.step_cost import StepCost
from policies.trajectory import Problem, Trajectory, WeightsVersion
from policies.workloads import ScriptedDialogue
from tests.orchestration.small_recipe import small_recipe

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"
PAPER = ROOT / "recipes" / "rstar2-14b-64gpu.toml"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(tomli_w.dumps(small_recipe().model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    return path


def simulated(recipe: Path, folder: Path, *arguments: str) -> dict:
    done = CliRunner().invoke(app, ["simulate", str(recipe), "--json", "--page", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_strategies_are_compared_on_the_same_work(recipe_file: Path, tmp_path: Path) -> None:
    found = simulated(recipe_file, tmp_path, "--strategies", "worst_case,predictive")
    worst, ours = found["strategies"]["worst_case"], found["strategies"]["predictive"]
    assert worst["lower_bound_s"] == pytest.approx(ours["lower_bound_s"]), "the same rollouts, whoever plays them"
    for figures in (worst, ours):
        assert figures["rollouts"] == 32 and figures["dropped"] == 0
        assert (
            figures["ratio"] == pytest.approx(figures["makespan_s"] / figures["lower_bound_s"]) and figures["ratio"] > 1
        )
        assert 0 < figures["kv_mean"] <= figures["kv_p99"] <= 1
        assert figures["run_s"] == pytest.approx(7 * figures["step_s"])
        assert figures["idle_engine_s"] == pytest.approx(figures["idle_share"] * 3 * figures["makespan_s"])
    assert worst["preemptions"] == worst["recomputed_tokens"] == 0, "what is reserved is never preempted"
    assert worst["queue_wait_mean_s"] > ours["queue_wait_mean_s"]
    assert found["events"] == worst["events"] + ours["events"]
    page = Path(found["page"]).read_text()
    assert "heatmap" in page and "KV in use" in page and "predictive" in page
    assert len(re.findall(r'"zmax":(\d+)', page)) == 2 and len(set(re.findall(r'"zmax":(\d+)', page))) == 1, (
        "a colour means the same under each strategy"
    )
    assert (
        simulated(recipe_file, tmp_path, "--strategies", "worst_case,predictive")["trace_hash"] == found["trace_hash"]
    )


@pytest.mark.slow  # two processes that import everything
def test_processes_side_by_side_find_what_one_finds(recipe_file: Path, tmp_path: Path) -> None:
    arguments = ("simulate", str(recipe_file), "--strategies", "static,predictive", "--json", "--page", str(tmp_path))
    done = CliRunner().invoke(app, [*arguments, "--jobs", "2"])
    found = json.loads(done.stdout)
    assert found["trace_hash"] == simulated(recipe_file, tmp_path, *arguments[2:4])["trace_hash"]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["static", "predictive"], "in their order"


@pytest.mark.parametrize(
    "failure", [Violation("a lease was lost"), HandlerFailed("director: failed\n  File x\nKeyError: 1")]
)
def test_a_run_that_fails_is_told_in_a_sentence(
    failure: Exception, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(setting: Setting) -> Rehearsal:
        raise failure

    monkeypatch.setattr(rehearsing, "rehearse", fails)
    done = CliRunner().invoke(app, ["simulate", str(recipe_file), "--page", str(tmp_path)])
    told = done.stderr.strip().splitlines()
    assert done.exit_code == 1 and len(told) == 1 and "the simulation failed: worst_case: " in told[0]
    assert str(failure).splitlines()[-1] in told[0]


def test_a_simulation_that_is_killed_is_told_in_a_sentence(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> list[Rehearsal]:
        raise WorkerLost("a process ended")

    monkeypatch.setattr(rehearsing, "side_by_side", killed)
    monkeypatch.setattr(drill, "side_by_side", killed)
    for command in (["simulate", "--page", str(tmp_path)], ["drill", "--virtual"]):
        done = CliRunner().invoke(app, [command[0], str(recipe_file), *command[1:]])
        assert done.exit_code == 1 and " failed: a process ended" in done.stderr


def test_a_narrow_screen_shows_every_strategy_whole(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, ["simulate", str(recipe_file), "--page", str(tmp_path), "--strategies", "all"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and "…" not in done.stdout and max(map(len, lines)) <= 80
    assert all(name in done.stdout for name in STRATEGIES)
    makespans = [line.split("│")[2:-1] for line in lines if "makespan of" in line]
    assert len(makespans) > 1 and sum(map(len, makespans)) == len(STRATEGIES)


def test_more_gpus_take_less_time(recipe_file: Path, tmp_path: Path) -> None:
    few, many = (simulated(recipe_file, tmp_path, "--gpus", gpus)["strategies"]["worst_case"] for gpus in ("2", "6"))
    assert many["makespan_s"] < few["makespan_s"] and many["step_s"] < few["step_s"]


def test_the_trace_is_printed_from_one_event_to_another(recipe_file: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", str(recipe_file), "--events", "100:104"])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["100", "101", "102", "103", "104"]


def test_the_papers_recipe_has_the_papers_size() -> None:
    recipe = load_recipe(PAPER)
    steps = [(stage.prompts * stage.sampled, stage.steps) for stage in recipe.stages.values()]  # type: ignore[union-attr]
    assert steps == [(16_384, 300), (16_384, 85), (16_384, 125)]
    assert recipe.generators.count * recipe.generators.gpus == 64
    assert engine_of(recipe).limits.kv_blocks == 25_000
    assert workload_of(recipe).stages["rl-3"].turns == 15


@pytest.mark.parametrize("kv_tokens", [1, 31, 32, 250, 256])
def test_the_simulated_engine_holds_what_a_recipe_may_ask_of_a_real_one(kv_tokens: int) -> None:
    recipe = load_recipe(QUICKSTART)
    engine = recipe.generators.engine.model_copy(update={"kv_tokens": kv_tokens})
    generators = recipe.generators.model_copy(update={"engine": engine})
    simulated = engine_of(recipe.model_copy(update={"generators": generators})).limits
    held = simulated.kv_blocks * simulated.block_tokens
    assert held == longest_lease(BalancerOptions(strategy="worst_case"), kv_tokens, engine.block_tokens)


def test_what_cannot_be_simulated_is_refused_with_what_would_be_right() -> None:
    recipe = small_recipe()
    with pytest.raises(RecipeError, match="there is no strategy 'magic'"):
        chosen_strategies("worst_case,magic", recipe)
    with pytest.raises(RecipeError, match="--gpus 0"):
        rescaled(recipe, 0)
    with pytest.raises(RecipeError, match="kv_tokens is left to vLLM"):
        engine = recipe.generators.engine.model_copy(update={"kv_tokens": None})
        generators = recipe.generators.model_copy(update={"engine": engine})
        engine_of(recipe.model_copy(update={"generators": generators}))


def test_the_lower_bound_of_one_rollout_is_its_own_path_step_by_step() -> None:
    """Against a count that goes token by token."""
    recipe = small_recipe()
    workload, cost = workload_of(recipe), StepCost(base=0.01, sequence=1e-3, context_token=1e-5, prefill_token=0.0)
    said = workload.rollout("rl/0/0/0")
    limits = DialogueLimits(max_tokens=said.tokens + 1, max_turns=20, max_turn_tokens=said.tokens)
    dialogue = ScriptedDialogue(
        id="rl/0/0/0", group="g", workload=workload, problem=Problem(id="p", question="", gold=""), limits=limits
    )
    seconds, length = 0.0, said.prompt_tokens
    for turn in said.turns:
        dialogue.said(turn, True, WeightsVersion(0, 0))
        seconds += cost.base  # the prefill samples the first token
        for _ in range(turn.n_tokens - 1):
            length += 1
            seconds += cost.base + cost.sequence + cost.context_token * length
        length += 1
        for index, call in enumerate(turn.calls):
            result = ToolResult(id=f"rl/0/0/0/{dialogue.turns - 1}/{index}", status="success", wall_seconds=0.5)
            dialogue.executed([result])
            seconds += 0.5
            length += call.response_tokens
    trajectory = _trajectory(dialogue)
    found = lower_bound([trajectory], cost=cost, engines=1, kv_tokens=10**9, max_running=1000)
    assert found == pytest.approx(seconds, rel=1e-9)
    crowd = lower_bound([trajectory] * 64, cost=cost, engines=1, kv_tokens=2048, max_running=1000)
    assert crowd > 2 * found, "many rollouts on one small engine are bound by its work"


def _trajectory(dialogue: ScriptedDialogue):
    action = dialogue.next_action()
    return Trajectory(
        id=dialogue.id,
        group="g",
        sample=0,
        stage="rl",
        step=0,
        problem=dialogue.problem,
        spans=tuple(dialogue.spans),
        calls=tuple(dialogue.calls),
        turns=dialogue.turns,
        answer_tags=1,
        finish=action.finish,  # type: ignore[union-attr]
        verdict=action.verdict,  # type: ignore[union-attr]
        reward=0.0,
        generator="generator-0",
    )


def test_a_calibration_takes_the_place_of_the_recipes_cost_model(tmp_path: Path) -> None:
    recipe = small_recipe()
    measured = StepCost(base=0.5)
    path = tmp_path / "calibration.json"
    path.write_text(calibration(measured).model_dump_json())
    assert calibrated(recipe, path).simulation.cost == measured != recipe.simulation.cost
    assert calibrated(recipe, None) is recipe


@pytest.mark.parametrize("text", [None, "{}", "no json"])
def test_a_file_that_is_no_calibration_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "cal.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=r"--calibration .*cal\.json.*greenroom calibrate --out"):
        calibrated(small_recipe(), path)


def calibration(cost: StepCost) -> Calibration:
    none = FitError(median=0.0, worst=0.0)
    return Calibration(
        engine="vllm", model="m", dtype="float32", threads=1, cost=cost, fit=none, held_out=none, repeat_spread=0.0,
        limits=BatchingLimits(kv_blocks=8, block_tokens=16, max_running=4, max_step_tokens=64),
        max_sequence_tokens=64, repeats=1, measurements=(),
    )  # fmt: skip
