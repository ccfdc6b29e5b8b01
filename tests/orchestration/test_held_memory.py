"""However long a run is, its actors hold what is under way, and little more: also where others die again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import actors.environment
import actors.generator
from actors.messages import NextReports, RunReinforcement
from actors.storage import fingerprints
from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage
from orchestration.cast import enter
from orchestration.simulated_cast import simulated_cast
from orchestration.simulation import Setting
from policies import admission_queue
from policies.balancing import StrategyName
from policies.dialogue import DialogueLimits
from policies.scripted import Script
from tests.orchestration.small_recipe import small_recipe
from tests.support.held import held_by

DIRECTOR = ActorRef("director")
SURVIVORS = ("director", "balancer", "archive", "learner", "rollout-0", "generator-0", "environment-0")
WARM, STEPS = 11, 33
DEATHS = ActorFaultPlan(
    faults=tuple(
        ActorFault(kind="kill", at=at, every=every, actor=actor)
        for actor, at, every in (
            ("rollout-1", 20.0, 90.0),
            ("generator-1", 50.0, 110.0),
            ("environment-1", 80.0, 130.0),
        )
    )
)


def held_over_a_run(strategy: StrategyName, plan: ActorFaultPlan, folder: Path) -> dict[str, list[Counter[str]]]:
    """What each survivor holds after each step."""
    recipe = small_recipe(strategy)
    setting = Setting(recipe=recipe, stage="rl", steps=STEPS, balancer=recipe.balancer)
    held: dict[str, list[Counter[str]]] = {name: [] for name in SURVIVORS}

    async def play() -> None:
        async with VirtualStage(seed=recipe.seed, plan=plan) as stage:
            await enter(stage, simulated_cast(recipe, balancer=setting.balancer, folder=folder, restarts=1000))
            options = setting.options()
            limits = DialogueLimits(**options.limits.model_dump(), tools=recipe.tools)
            request = RunReinforcement(name="rl", options=options, limits=limits)
            work = asyncio.ensure_future(stage.port.ask(DIRECTOR, request))
            after = 0
            while not work.done():
                reports = await stage.port.ask(DIRECTOR, NextReports(after=after, patience_s=1.0))
                if reports.next > after:
                    for name in SURVIVORS:
                        actor = stage.actor(ActorRef(name))
                        held[name].append(held_by(actor, beyond=(actor.port,), beyond_types=(Script,)))
                after = reports.next
            await work

    run_virtual(play())
    return held


@pytest.mark.parametrize(
    ("strategy", "plan"), [("worst_case", ActorFaultPlan()), ("predictive", DEATHS)], ids=["calm", "deaths"]
)
def test_actors_hold_no_more_after_many_steps_than_after_some(
    strategy: StrategyName, plan: ActorFaultPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.environment, "RECENT_RESULTS", 16)  # what has a bound is to be full at once
    monkeypatch.setattr(actors.generator, "FORGOTTEN", 16)
    monkeypatch.setattr(fingerprints, "LEAST_FRESH", 16)
    monkeypatch.setattr(fingerprints, "FRESH_SHARE", 0.0)
    monkeypatch.setattr(admission_queue, "LEAST_ENTRIES", 4)
    for name, after_steps in held_over_a_run(strategy, plan, tmp_path).items():
        sizes = [held.total() for held in after_steps]
        assert len(sizes) > STEPS - 5, "it is looked at after each step"
        early, late = sizes[WARM : (WARM + STEPS) // 2], sizes[(WARM + STEPS) // 2 :]
        grown = after_steps[-1] - after_steps[WARM]
        # These are eleven steps of 32 rollouts, four groups and one report of some sixty figures. (The archive knows
        # the steps of its ledger by three objects each.)
        assert max(late) - max(early) < 44, f"{name} holds {sizes}; of the last, more than before: {grown}"
