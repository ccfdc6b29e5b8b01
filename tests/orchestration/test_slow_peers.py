"""What lives and works may take as long as it takes: slow runs come to their end, and nothing is done twice for it.

On the virtual stage; every actor is real but engine, interpreters and learner.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import orchestration.invariants as invariants
import orchestration.simulation as simulation
from actors.generator import GeneratorActor
from actors.messages import Learn, Learned, SampleTurn, TurnSampled
from actors.simulated_learner import SimulatedLearnerActor
from actors.system.actor import Actor, CannotGoOn, handles
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from orchestration.cast import Cast
from orchestration.cli import app
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from orchestration.simulated_cast import simulated_cast
from orchestration.simulation import Rehearsal, Setting, rehearse
from tests.orchestration.small_recipe import small_recipe

QUICK = {"base": 0.01, "sequence": 0.0, "context_token": 0.0, "prefill_token": 0.0, "prefill_pair": 0.0}
SLOW_LEARNER = {"step_seconds": 20_000.0, "publish_seconds": 9_000.0, "checkpoint_seconds": 9_000.0}
"""Steps of more than five hours, and hours for what takes seconds elsewhere."""


@pytest.fixture(autouse=True)
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days pass here: looks at every second of them would take minutes."""
    monkeypatch.setattr(invariants, "LOOK_S", 120.0)
    monkeypatch.setattr(simulation, "SAMPLES", 0.01)


def slow_recipe(strategy: str = "worst_case", *, step_s: float = 0.01, **changes: Any) -> Recipe:
    """Engines that sample a token in each sequence in `step_s`."""
    data = small_recipe(strategy).model_dump(mode="json", exclude_none=True)
    data["simulation"] |= {"cost": QUICK | {"base": step_s}}
    for key, value in changes.items():
        data[key] |= value
    return validate_recipe(data, "a slow recipe")


def rehearsed(recipe: Recipe) -> tuple[Rehearsal, Counter[tuple[str, str]]]:
    """What came of it, and how often each kind of event happened with each message."""
    lines: list[str] = []
    found = rehearse(Setting(recipe=recipe, stage="rl", steps=2, balancer=recipe.balancer, show=lines.append))
    read = re.compile(r"\d+ [\d.]+ (ask|late) \S+ > \S+ (\S+)")
    return found, Counter((match[1], match[2]) for line in lines if (match := read.match(line)))


@pytest.mark.parametrize("strategy", ["worst_case", "predictive"])
def test_on_slow_engines_whatever_waits_for_hours_is_asked_for_once(strategy: str) -> None:
    quick, asked = rehearsed(slow_recipe(strategy))
    slow, asked_slowly = rehearsed(slow_recipe(strategy, step_s=40.0))
    assert slow.figures["queue_wait_p99_s"] > 2 * 7200
    assert slow.figures["makespan_s"] > 5 * 7200
    for message in ("rollout.run", "generator.sample", "balancer.acquire", "learner.learn"):
        assert asked["ask", message] == asked_slowly["ask", message] > 0, message
    assert not [kind for kind, _ in asked_slowly if kind == "late"]
    assert slow.figures["rollouts"] == quick.figures["rollouts"] and not slow.figures["dropped"]
    assert asked_slowly["ask", "work.describe"] > 0 == asked["ask", "work.describe"]


def test_a_learner_that_takes_hours_for_each_thing_is_waited_for() -> None:
    slow, asked = rehearsed(slow_recipe(simulation={"learner": SLOW_LEARNER}))
    assert slow.figures["step_s"] > 29_000
    assert (asked["ask", "learner.learn"], asked["ask", "learner.publish"]) == (2, 2)
    assert not [kind for kind, _ in asked if kind == "late"]


@pytest.mark.parametrize("how", ["in_flight", "drain"])
def test_asynchronous_steps_wait_for_slow_engines_and_a_slow_learner(how: str) -> None:
    stage = {"max_staleness": 1, "weight_update": how}
    recipe = slow_recipe(step_s=20.0, simulation={"learner": SLOW_LEARNER})
    options = recipe.stages["rl"].model_copy(update=stage)
    found, asked = rehearsed(recipe.model_copy(update={"stages": {"rl": options}}))
    assert found.figures["dropped"] == 0
    assert not [kind for kind, _ in asked if kind == "late"]


def test_a_generator_that_died_while_the_learner_learns_for_hours_has_started_before_that_ends() -> None:
    """A stage gives up an actor whose start takes ten minutes."""
    lines: list[str] = []
    recipe = slow_recipe(simulation={"learner": SLOW_LEARNER})
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", actor="generator-0", at=100.0),))
    found = rehearse(
        Setting(recipe=recipe, stage="rl", steps=2, balancer=recipe.balancer, plan=plan, restarts=1, show=lines.append)
    )
    started = [float(line.split()[1]) for line in lines if " start generator-0 " in line]
    learned = next(float(line.split()[1]) for line in lines if " learner.learned " in line)
    assert len(started) == 2 and 100 < started[1] < 300 < learned
    second = found.steps[1]
    assert second["turns_generator-0"] > 0 and second["dropped"] == 0, "it has the weights, and works"


class Hangs(SimulatedLearnerActor):
    """Its loop turns, and its thread never comes back."""

    async def _learn(self, message: Learn) -> Learned:
        await self.port.clock.sleep(1e9)
        return await super()._learn(message)


class LosesOneTurn(GeneratorActor):
    """An engine that answers one turn never, and goes on with the others."""

    lost = ""

    @handles(SampleTurn)
    async def on_sample(self, request: SampleTurn) -> TurnSampled:
        if self.port.name == "generator-1" and request.turn == 1 and self.lost in ("", request.lease.rollout):
            self.lost = request.lease.rollout
            await self.port.clock.sleep(1e9)
        sampled = await super().on_sample(request)
        assert isinstance(sampled, TurnSampled)
        return sampled


def plant(monkeypatch: pytest.MonkeyPatch, role: str, actor: type[Actor]) -> None:
    def planted(*arguments: Any, **options: Any) -> Cast:
        cast = simulated_cast(*arguments, **options)
        parts = getattr(cast, role)
        if isinstance(parts, tuple):
            return replace(cast, **{role: tuple(replace(part, actor=actor) for part in parts)})
        return replace(cast, **{role: replace(parts, actor=actor)})

    monkeypatch.setattr(simulation, "simulated_cast", planted)


def test_a_learner_that_hangs_ends_the_run_with_a_sentence_after_two_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "learner", Hangs)
    with pytest.raises(CannotGoOn, match=r"^learner has not answered 'learner\.learn' within 3600 s, .* hangs") as end:
        rehearsed(slow_recipe())
    assert "\n" not in str(end.value)


def test_a_turn_that_an_engine_never_ends_is_sampled_elsewhere_when_the_engine_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, "generators", LosesOneTurn)
    found, asked = rehearsed(slow_recipe())
    assert found.figures["rollouts"] == 2 * 32 and found.figures["dropped"] == 0
    assert asked["late", "generator.sample"] == 1
    assert 1200 < max(step["time_rollout_s"] for step in found.steps) < 1300


def test_the_command_says_why_a_simulated_run_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, "learner", Hangs)
    recipe = tmp_path / "small.toml"
    recipe.write_text(tomli_w.dumps(small_recipe().model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    done = CliRunner().invoke(app, ["simulate", str(recipe), "--page", str(tmp_path)])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert done.stderr.startswith(
        "the simulation failed: worst_case: learner has not answered 'learner.learn' within 3600 s"
    )
    assert "Traceback" not in done.stderr
