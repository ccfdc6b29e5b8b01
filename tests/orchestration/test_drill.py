"""Drills: fault plans break nothing that is right, find what is wrong, and shrink to what matters."""

from collections import Counter

import pytest
from typer.testing import CliRunner

import orchestration.drill as drills
from actors.director import LEFT_OUT_S
from actors.supervision import Supervision
from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan, shrink
from orchestration.cli import app
from orchestration.drill import Drill
from orchestration.recipe import RecipeError
from orchestration.recipe_loading import validate_recipe
from orchestration.simulation import Setting, rehearse
from tests.orchestration.small_recipe import small_recipe


@pytest.fixture(scope="module")
def drill() -> Drill:
    return Drill(small_recipe("predictive"))  # as recipes have it by default


@pytest.mark.slow  # a hundred plans, each run twice
@pytest.mark.timeout(600)
def test_a_hundred_plans_break_nothing(drill: Drill) -> None:
    hit = Counter(fault.kind for seed in range(100) for fault in drill.plan(seed).faults)
    assert min(hit.values()) > 20 and len(hit) == 7, "every kind of fault is drawn, often"
    assert drill.run(range(100), lambda seed, reason: None, jobs=2) == []


def test_a_few_plans_break_nothing(drill: Drill) -> None:
    assert drill.run(range(200, 205), lambda seed, reason: None) == []


def test_a_killed_generator_costs_no_rollout(drill: Drill) -> None:
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=3.0, actor="generator-1"),))
    assert drill.fault_of(plan, None) == ""


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_groups_that_dynamic_sampling_adds_are_accounted_for(max_staleness: int) -> None:
    recipe = small_recipe()
    refilled = {"dynamic_sampling": {"groups": 6, "rounds": 1}, "max_staleness": max_staleness}
    data = recipe.model_dump(mode="json", exclude_none=True)
    data["stages"]["rl"] |= refilled
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=3.0, actor="generator-1"),))
    assert Drill(validate_recipe(data, "a recipe that refills")).fault_of(plan, None) == ""


def test_a_generator_that_is_gone_for_good_is_waited_for_once() -> None:
    recipe = small_recipe()
    recipe = recipe.model_copy(update={"supervision": recipe.supervision.model_copy(update={"restarts": 0})})
    kill = ActorFault(kind="kill", at=3.0, actor="generator-1")

    def syncs(*faults: ActorFault) -> list[float]:
        plan = ActorFaultPlan(faults=faults)
        setting = Setting(recipe=recipe, stage="rl", steps=3, balancer=recipe.balancer, plan=plan, restarts=0)
        return [step["time_sync_s"] for step in rehearse(setting).steps]

    calm, first = syncs()[0], syncs(kill)
    assert first[0] - calm > LEFT_OUT_S
    assert first[1:] == pytest.approx([calm, calm])


@pytest.mark.parametrize("actor", ["balancer", "archive", "learner"])
@pytest.mark.parametrize("at", [1.0, 4.0, 12.0])
def test_those_of_which_there_is_one_may_die(drill: Drill, actor: str, at: float) -> None:
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=at, actor=actor),))
    assert drill.fault_of(plan, None) == ""


class _LeavesTheDeadIn(Supervision):
    """Tells the balancer nothing of dead rollout actors."""

    async def _rollouts_gone(self, ref: ActorRef, incarnation: int) -> None:
        return None


@pytest.mark.slow  # each try is run twice
def test_a_bug_is_found_and_its_plan_shrunk_to_the_fault_that_shows_it(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.director.Supervision", _LeavesTheDeadIn)
    faults = [ActorFault(kind="delay", at=at, actor="archive", seconds=0.1) for at in (0.5, 1.0, 2.0, 4.0)]
    kill = ActorFault(kind="kill", at=3.0, actor="rollout-0")
    plan = ActorFaultPlan(faults=(*faults[:2], kill, *faults[2:]))
    monkeypatch.setattr(drill, "plan", lambda seed: plan)
    (failure,) = drill.run([0], lambda seed, reason: None)
    assert failure.shrunk.faults == (kill,)
    assert "nothing has come of" in failure.reason, "the leases of the dead are what the living wait for"


def test_plans_are_drawn_from_their_seed_and_survive_json() -> None:
    options = {"actors": ["a", "b"], "until": 10.0, "killable": ["b"]}
    plans = [ActorFaultPlan.draw(seed, **options) for seed in range(50)]
    assert plans == [ActorFaultPlan.draw(seed, **options) for seed in range(50)]
    assert len({str(plan) for plan in plans}) > 45
    assert all(fault.actor == "b" for plan in plans for fault in plan.faults if fault.kind == "kill")
    assert ActorFaultPlan.model_validate_json(plans[3].model_dump_json()) == plans[3]


def test_shrinking_leaves_out_what_can_be_left_out() -> None:
    faults = tuple(ActorFault(kind="delay", at=float(at), actor="a") for at in range(20))
    needed = [faults[3], faults[17]]
    shrunk = shrink(ActorFaultPlan(faults=faults), lambda plan: all(fault in plan.faults for fault in needed))
    assert list(shrunk.faults) == needed


def test_the_command_says_how_a_broken_plan_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Drill, "fault_of", lambda self, plan, explore: "planted" if plan.faults else "")
    recipe = request.config.rootpath / "recipes" / "quickstart.toml"
    done = CliRunner().invoke(app, ["drill", str(recipe), "--virtual", "--seeds", "2"])
    assert done.exit_code == 1
    assert "repeat it: greenroom drill" in done.output and "--plan plan-1.json --first 1" in done.output
    assert len(ActorFaultPlan.model_validate_json((tmp_path / "plan-1.json").read_text()).faults) == 1


@pytest.mark.parametrize(
    ("fault", "lacks"),
    [
        (ActorFault(kind="kill", at=1, actor="environment-0", process="jail"), "no jail"),
        (ActorFault(kind="squeeze", at=1, actor="environment-*"), "no sandbox"),
        (ActorFault(kind="fill", at=1), "no disk"),
    ],
    ids=lambda value: value.kind if isinstance(value, ActorFault) else "",
)
def test_what_the_virtual_stage_does_not_have_can_not_fail_there(
    fault: ActorFault, lacks: str, tmp_path, request: pytest.FixtureRequest
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(ActorFaultPlan(faults=(fault,)).model_dump_json())
    recipe = request.config.rootpath / "recipes" / "quickstart.toml"
    done = CliRunner().invoke(app, ["drill", str(recipe), "--virtual", "--plan", str(plan)])
    assert isinstance(done.exception, RecipeError) and lacks in str(done.exception)


def test_the_miniature_is_small_whatever_the_recipe_is() -> None:
    recipe = drills.miniature(small_recipe("predictive"))
    assert (recipe.generators.count, recipe.stages["rl"].steps) == (drills.GENERATORS, drills.STEPS)
