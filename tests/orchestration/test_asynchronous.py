"""Asynchronous training on the virtual stage: every actor is real but engine, interpreters and learner; invariants are
looked after all along (`orchestration.invariants`, the bound on staleness among them)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from actors.storage.trained_steps import FILE, read_trained_steps
from orchestration.drill import Drill
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from orchestration.simulation import Rehearsal, Setting, rehearse, rehearse_twice
from tests.orchestration.small_recipe import small_recipe
from tests.orchestration.test_resume import Run

SLOW_LEARNER = {"parameters": 1e9, "flops": 4e12, "step_seconds": 5.0, "publish_seconds": 1.0}
"""A step takes about as long as the rollouts of one: the more there is to gain."""


STEPS = 5


def recipe(**stage: Any) -> Recipe:
    data = small_recipe().model_dump(mode="json", exclude_none=True)
    data["stages"]["rl"] |= stage
    data["simulation"] |= {"learner": SLOW_LEARNER}
    return validate_recipe(data, "an asynchronous recipe")


def rehearsed(**stage: Any) -> Rehearsal:
    made = recipe(**stage)
    return rehearse(Setting(recipe=made, stage="rl", steps=STEPS, balancer=made.balancer))


@pytest.fixture(scope="module")
def synchronous() -> Rehearsal:
    return rehearsed()


def total(run: Rehearsal, figure: str) -> float:
    return sum(step[figure] for step in run.steps)


@pytest.mark.parametrize("max_staleness", [1, 2])
@pytest.mark.parametrize("too_old", ["drop", "wait"])
def test_generators_work_while_the_learner_does_and_no_token_is_too_old(
    synchronous: Rehearsal, max_staleness: int, too_old: str
) -> None:
    made = recipe(max_staleness=max_staleness, too_old=too_old)
    run = rehearse_twice(Setting(recipe=made, stage="rl", steps=STEPS, balancer=made.balancer))
    staleness = [step["staleness_max"] for step in run.steps]
    assert 0 < max(staleness) <= max_staleness and staleness[0] == 0
    assert total(run, "staleness_tokens_1") > 0
    assert total(run, "generator_idle_share") < 0.8 * total(synchronous, "generator_idle_share")
    assert total(run, "time_total_s") < total(synchronous, "time_total_s")
    assert [step["groups"] for step in run.steps] == [4.0] * STEPS
    left_over = run.figures["rollouts"] / 8 - STEPS * 4 - total(run, "groups_too_old")
    assert left_over == run.steps[-1]["groups_under_way"]
    if too_old == "wait":
        assert total(run, "groups_too_old") == left_over == 0


def test_fault_plans_break_nothing() -> None:
    drill = Drill(recipe(max_staleness=1))
    assert drill.run(range(3), lambda seed, reason: None) == []


def test_new_weights_come_into_turns_that_are_under_way_or_after_the_rollouts() -> None:
    in_flight, drained = (rehearsed(max_staleness=1, weight_update=how) for how in ("in_flight", "drain"))
    assert total(in_flight, "several_versions_share") > 0
    assert total(drained, "several_versions_share") == 0 and total(drained, "staleness_tokens_1") > 0
    assert total(in_flight, "generator_idle_share") < total(drained, "generator_idle_share")


def test_synchronous_training_says_how_long_its_generators_idle(synchronous: Rehearsal) -> None:
    for step in synchronous.steps:
        assert step["staleness_max"] == 0 and step["several_versions_share"] == 0 and step["groups_under_way"] == 0
        busy = sum(step[f"busy_share_generator-{index}"] for index in range(3)) / 3 * step["time_rollout_s"]
        assert step["generator_idle_share"] == pytest.approx(1 - busy / step["time_total_s"], abs=1e-3)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(resumed_recipe(), tmp_path_factory.mktemp("runs") / "undisturbed")
    assert run.go()
    return run


def resumed_recipe() -> Recipe:
    made = recipe(max_staleness=1, too_old="wait", steps=6, prompts=3, group=2)
    data = made.model_dump(mode="json", exclude_none=True)
    checkpoints, evaluation = {"interval_seconds": 0, "keep": 2}, data["evaluation"] | {"count": 2}
    return validate_recipe(data | {"checkpoints": checkpoints, "evaluation": evaluation}, "an asynchronous recipe")


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_dies_anywhere_trains_no_group_twice_and_skips_none(
    undisturbed: Run, tmp_path: Path, seed: int
) -> None:
    luck, run, deaths, played = random.Random(seed), Run(resumed_recipe(), tmp_path / "run"), 0, set[str]()
    # It has to live long enough for a step now and then: the first one comes when most of two steps' groups are there.
    while not run.go(last_event=luck.randrange(undisturbed.events // 10, undisturbed.events * 3 // 4)):
        deaths += 1
        played |= {request.group for request in run.played}
    assert deaths > 0
    for each in (run, undisturbed):
        ledger = read_trained_steps(each.folder / "archive" / FILE)
        steps = [line["step"] for line in ledger]  # those that had something to learn from
        trained = [group["group"] for line in ledger for group in line["groups"]]
        taken = [group for line in ledger for group in line["taken"]]
        assert steps == sorted(set(steps)) and len(trained) == len(set(trained)) > 0
        assert len(taken) == len(set(taken)) == 3 * len(steps)
    assert run.reported == undisturbed.reported
    # Six steps of three groups: each was begun, and none beyond them was needed.
    played |= {request.group for request in run.played}
    assert {group for group in played if group.startswith("rl/")} == {f"rl/{n // 3}/{n % 3}" for n in range(18)}


def test_a_deterministic_run_refuses_to_be_asynchronous() -> None:
    data = recipe().model_dump(mode="json", exclude_none=True)
    data["generators"]["engine"] |= {"dtype": "float32", "prefix_caching": False}
    data["stages"]["rl"] |= {"max_staleness": 1}
    with pytest.raises(ValueError, match=r"stages\.rl\.max_staleness = 1, but a deterministic run needs 0"):
        validate_recipe(data | {"deterministic": True}, "a recipe")


def test_stale_tokens_are_weighed_unless_the_recipe_says_how() -> None:
    objectives = [
        recipe(**stage).stages["rl"].objective  # type: ignore[union-attr]
        for stage in (
            {},
            {"max_staleness": 1},
            {"max_staleness": 1, "objective": {"importance_cap": 5.0}},
            {"max_staleness": 1, "objective": {"importance_band": [0.5, 2.0]}},
        )
    ]
    assert [each.importance_cap for each in objectives] == [None, 2.0, 5.0, None]
