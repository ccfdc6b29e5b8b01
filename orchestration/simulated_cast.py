"""The cast of a simulation: a recipe's own, with understudies for engines, interpreters and learner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from actors.engines.simulated_engine import SimulatedOptions
from actors.simulated_learner import SimulatedLearnerActor
from actors.system.stage import Part
from orchestration.cast import Cast, cast_for, run_books
from orchestration.recipe import Recipe, RecipeError
from orchestration.resume import Beginning
from policies.balancing import BalancerOptions
from policies.batching_records import BatchingLimits
from policies.scripted import Script
from policies.stages import ReinforcementOptions
from policies.trajectory import UNTRAINED
from policies.workloads import PROFILES, Workload, WorkloadOptions


def workload_of(recipe: Recipe) -> Workload:
    """What the models of a recipe's stages say."""
    named = recipe.simulation.workloads
    stages: dict[str, WorkloadOptions] = {}
    for name, stage in recipe.stages.items():
        if isinstance(stage, ReinforcementOptions):
            given = named.get(name) or WorkloadOptions.scaled(stage.limits.max_tokens, stage.limits.max_turns)
            stages[name] = PROFILES[given] if isinstance(given, str) else given
            stages[f"evaluation-{name}"] = stages[name]
    return Workload(seed=recipe.seed, stages=stages)


def engine_of(recipe: Recipe) -> SimulatedOptions:
    """The simulated engine with the capacity of the recipe's own. Raises `RecipeError` if that is left to vLLM."""
    engine = recipe.generators.engine
    if engine.kv_blocks is None:
        raise RecipeError("generators.engine.kv_tokens is left to vLLM; a simulation needs to know it: give a number")
    return SimulatedOptions(
        limits=BatchingLimits(
            kv_blocks=engine.kv_blocks,
            block_tokens=engine.block_tokens,
            max_running=engine.max_running,
            max_step_tokens=max(engine.max_step_tokens, engine.max_running),
            prefix_caching=engine.prefix_caching,
        ),
        max_sequence_tokens=engine.max_sequence_tokens,
        cost=recipe.simulation.cost,
        update_seconds=recipe.simulation.update_seconds,
    )


def simulated_cast(
    recipe: Recipe,
    *,
    balancer: BalancerOptions,
    folder: Path,
    restarts: int = 0,
    beginning: Beginning | None = None,
    workload: Script | None = None,
) -> Cast:
    """The cast of a simulation.

    Args:
        balancer: the strategy to try.
        folder: where the archive is written, and checkpoints if the run keeps any.
        restarts: how often an actor is restarted after a death; the director never is.
        beginning: what the run goes on from; None for one that keeps no checkpoints.
        workload: what models say; None: what the recipe says that they do.
    """
    workload, engine = workload or workload_of(recipe), engine_of(recipe)
    version = UNTRAINED if beginning is None else beginning.version
    learner = Part(
        name="learner",
        actor=SimulatedLearnerActor,
        arguments={"cost": recipe.simulation.learner, "version": version},
    )
    # Paths travel in messages, so they must be the same in each run: only the archive learns where it really is.
    simulated = Path("simulated")
    cast = cast_for(recipe, model=simulated, folder=simulated, run_id="simulated", understudy=learner)
    books = {} if beginning is None else run_books(recipe, folder, beginning)
    return Cast(
        other_learners=(),
        learner=_with(cast.learner, max(cast.balancer.restarts, restarts)),  # as often as others of which there is one
        balancer=_with(cast.balancer, restarts, options=balancer),
        archive=_with(cast.archive, restarts, folder=str(folder / "archive")),
        director=_with(cast.director, model=None, **books),
        environments=tuple(_with(part, restarts, workload=workload) for part in cast.environments),
        generators=tuple(_with(part, restarts, model="", options=engine, script=workload) for part in cast.generators),
        rollouts=tuple(_with(part, restarts, model=None, workload=workload) for part in cast.rollouts),
    )


def _with(part: Part, restarts: int = 0, **arguments: object) -> Part:
    return replace(part, arguments=part.arguments | arguments, restarts=max(part.restarts, restarts))
