"""Real processes on real Ray die by SIGKILL while they train; engine, interpreters and learner are understudies.

(With real ones: `greenroom drill`. On the virtual stage: tests/orchestration/test_resume.py.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.messages import DescribeBalancer, NextReports, RunReinforcement
from actors.storage.check import check_archive
from actors.storage.reader import Archive
from actors.storage.trained_steps import FILE, read_trained_steps
from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.ray_stage import RayStage
from orchestration.cast import enter
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from orchestration.resume import Beginning
from orchestration.simulated_cast import simulated_cast
from orchestration.simulation import DIRECTOR
from orchestration.strikes import Striker
from policies.dialogue import DialogueLimits
from policies.run_progress import Rewound
from policies.stages import ReinforcementOptions
from tests.orchestration.small_recipe import small_recipe

VICTIMS = ("archive", "balancer", "rollout-0", "generator-0", "environment-0", "learner")
STEPS, PROMPTS, GROUP = 6, 3, 2


def recipe() -> Recipe:
    """Steps of some seconds: the engine's model is slow, and actors can die within a step."""
    data = small_recipe().model_dump(mode="json", exclude_none=True)
    stage = data["stages"]["rl"] | {"steps": STEPS, "prompts": PROMPTS, "group": GROUP}
    data |= {
        "stages": {"rl": stage},
        "checkpoints": {"interval_seconds": 0, "keep": 2},
        "generators": data["generators"] | {"count": 2},
        "environments": data["environments"] | {"count": 1},
        "rollouts": {"count": 1},
    }
    data["simulation"]["cost"]["base"] = 0.002
    return validate_recipe(data, "slow engines")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
async def test_whoever_dies_each_group_is_trained_once_and_no_lease_is_left(
    ray_stage_factory: Callable[..., RayStage], tmp_path: Path
) -> None:
    made = recipe()
    options = made.stages["rl"]
    assert isinstance(options, ReinforcementOptions)
    faults = tuple(ActorFault(kind="kill", at=0.5 * number, actor=name) for number, name in enumerate(VICTIMS))
    async with ray_stage_factory(seed=3, name="deaths", log_dir=tmp_path / "logs") as stage:
        cast = simulated_cast(made, balancer=made.balancer, folder=tmp_path, restarts=3, beginning=Beginning())
        await enter(stage, cast)
        names = [part.name for part in cast.parts()]
        striker = Striker(stage, ActorFaultPlan(faults=faults), names, 0, folder=tmp_path, counters=dict)
        striking = asyncio.create_task(striker.run())
        limits = DialogueLimits(**options.limits.model_dump())
        await stage.port.ask(DIRECTOR, RunReinforcement(name="rl", options=options, limits=limits), 240)
        await striker.settle(60)
        striking.cancel()
        reports = (await stage.port.ask(DIRECTOR, NextReports(after=0), 60)).reports
        assert await open_entries(stage) == (0, 0, 2)
    assert sorted(death.name for death in stage.deaths) == sorted(VICTIMS)
    assert {strike.actor: (strike.confirmed, strike.outcome) for strike in striker.strikes} == dict.fromkeys(
        VICTIMS, (True, "recovered")
    )
    assert [report for report in reports if isinstance(report, Rewound)], "the learner's death"
    lines = read_trained_steps(tmp_path / "archive" / FILE)
    steps, versions = [line["step"] for line in lines], [line["version"][1] for line in lines]
    assert steps == sorted(set(steps)) and versions == list(range(1, len(lines) + 1))
    groups = [group["group"] for line in lines for group in line["groups"]]
    assert len(groups) == len(set(groups)) > 0
    rolled_out = {(row.group, row.sample) for row in Archive(tmp_path / "archive").rows}
    assert len(rolled_out) == STEPS * PROMPTS * options.sampled
    assert not check_archive(tmp_path / "archive").damaged


async def open_entries(stage: RayStage) -> tuple[int, int, int]:
    """Leases, wishes and generators in the balancer's books, once the leases have had time to come home."""
    for _ in range(600):
        books = await stage.port.ask(ActorRef("balancer"), DescribeBalancer(), 60)
        entries = sum(load.sessions for load in books.loads), books.waiting, len(books.loads)
        if entries == (0, 0, 2):
            break
        await asyncio.sleep(0.1)
    return entries
