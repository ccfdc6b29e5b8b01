"""The cast: which actors a recipe needs, and how they find each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.archive import ArchiveActor
from actors.balancer import BalancerActor
from actors.director import DirectorActor
from actors.environment import EnvironmentActor
from actors.generator import GeneratorActor
from actors.rollout import RolloutActor
from actors.run_books import CheckpointPlan
from actors.system.actor import ActorRef
from actors.system.stage import Part, Stage
from orchestration.engine_environment import QUIET_ENGINE
from orchestration.recipe import LOOPBACK, Recipe
from orchestration.resume import CHECKPOINTS, Beginning

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
REPEATABLE_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it, torch's deterministic mode refuses matrix products on GPUs."""
GLOO_ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
"""Learners of one machine talk to each other where nobody else can listen."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The parts of a run, and the names by which they know each other."""

    learner: Part
    """The first one, whom others talk to."""
    other_learners: tuple[Part, ...]
    balancer: Part
    archive: Part
    director: Part
    environments: tuple[Part, ...]
    generators: tuple[Part, ...]
    rollouts: tuple[Part, ...]

    def parts(self) -> Iterator[Part]:
        """All parts, those that others ask at their start first."""
        yield from (self.balancer, *self.other_learners, self.archive, self.learner)
        yield from self.environments
        yield from self.generators
        yield from self.rollouts
        yield self.director


def cast_for(
    recipe: Recipe,
    *,
    model: Path,
    folder: Path,
    run_id: str,
    beginning: Beginning | None = None,
    understudy: Part | None = None,
) -> Cast:
    """The cast of a training run.

    Args:
        model: folder of the model that training starts from.
        folder: the run's folder.
        run_id: what the run's processes, mounts and cgroups are marked with.
        beginning: what the run goes on from; None for a run that keeps no checkpoints.
        understudy: takes the place of the learners.
    """
    balancer, archive, learner = ActorRef("balancer"), ActorRef("archive"), ActorRef("learner")
    others = [ActorRef(f"learner-{rank}") for rank in range(1, recipe.learner.count) if understudy is None]
    environments = [ActorRef(f"environment-{index}") for index in range(recipe.environments.count)]
    generators = [ActorRef(f"generator-{index}") for index in range(recipe.generators.count)]
    rollouts = [ActorRef(f"rollout-{index}") for index in range(recipe.rollouts.count)]
    restarts = _restarts(recipe)
    return Cast(
        learner=understudy or _learner(recipe, model, learner.name, beginning, others=others),
        other_learners=tuple(_learner(recipe, model, ref.name, beginning) for ref in others),
        balancer=Part(
            name=balancer.name,
            actor=BalancerActor,
            arguments={"options": recipe.balancer, "director": ActorRef("director"), "rollouts": rollouts},
            **restarts,
        ),
        archive=Part(name=archive.name, actor=ArchiveActor, arguments={"folder": str(folder / "archive")}, **restarts),
        director=Part(
            name="director",
            actor=DirectorActor,
            arguments={
                "model": str(model),
                "prompt": recipe.prompt,
                "run_seed": recipe.seed,
                "learner": learner,
                "balancer": balancer,
                "archive": archive,
                "generators": generators,
                "environments": environments,
                "rollouts": rollouts,
                "checkpoints": str(folder / "checkpoints"),
                "waves": recipe.balancer.headroom if recipe.deterministic else None,
                **({} if beginning is None else run_books(recipe, folder, beginning)),
            },
            environment=OFFLINE,
        ),
        environments=tuple(
            Part(
                name=ref.name,
                actor=EnvironmentActor,
                arguments={
                    "limits": recipe.largest_call(),
                    "workers": recipe.environments.workers,
                    "run_id": f"{run_id}-{ref.name}",
                    "isolation": recipe.environments.isolation,
                    "preloaded": recipe.environments.preloaded,
                    "recycle_after": recipe.environments.recycle_after,
                    "sessions": recipe.environments.sessions,
                },
                **restarts,
            )
            for ref in environments
        ),
        generators=tuple(
            Part(
                name=ref.name,
                actor=GeneratorActor,
                arguments={
                    "model": str(model),
                    "options": recipe.generators.engine,
                    "balancer": balancer,
                    "learner": learner,
                },
                gpus=recipe.generators.gpus,
                threads=recipe.generators.threads,
                environment=QUIET_ENGINE,
                **restarts,
            )
            for ref in generators
        ),
        rollouts=tuple(
            Part(
                name=ref.name,
                actor=RolloutActor,
                arguments={
                    "model": str(model),
                    "prompt": recipe.prompt,
                    "run_seed": recipe.seed,
                    "balancer": balancer,
                    "environments": environments,
                    "archive": archive,
                },
                environment=OFFLINE,
                **restarts,
            )
            for ref in rollouts
        ),
    )


def _restarts(recipe: Recipe) -> dict[str, Any]:
    """What the parts of actors say that are started again after a death."""
    supervision = recipe.supervision
    return {"restarts": supervision.restarts, "restart_window_s": supervision.window_seconds}


def run_books(recipe: Recipe, folder: Path, beginning: Beginning) -> dict[str, Any]:
    """The director's arguments of a run that keeps checkpoints in `folder`."""
    plan = CheckpointPlan(folder=str(folder / CHECKPOINTS), **recipe.checkpoints.model_dump())
    return {"plan": plan, "progress": beginning.progress, "restored": beginning.restored}


def _learner(
    recipe: Recipe, model: Path, name: str, beginning: Beginning | None, others: Sequence[ActorRef] = ()
) -> Part:
    from actors.learner import LearnerActor  # not above: torch takes seconds, and a simulation has no use for it

    settings = recipe.learner
    began: dict[str, Any] = {}
    if beginning is not None:
        began = {
            "checkpoint": None if beginning.checkpoint is None else str(beginning.checkpoint),
            "version": beginning.version,
        }
    environment = OFFLINE | (GLOO_ON_LOOPBACK if settings.host == LOOPBACK else {})
    return Part(
        name=name,
        actor=LearnerActor,
        arguments={
            "model": str(model),
            "dtype": recipe.model.dtype,
            "threads": settings.threads,
            "seed": recipe.seed,
            "deterministic": recipe.deterministic,
            "device": "cuda" if settings.gpus else "cpu",
            "others": others,
            "host": settings.host,
            **began,
        },
        gpus=settings.gpus,
        threads=settings.threads,
        environment=environment | (REPEATABLE_CUBLAS if recipe.deterministic else {}),
        **(_restarts(recipe) if settings.count == 1 else {}),  # a group is lost together (ADR 17)
    )


async def enter(
    stage: Stage, cast: Cast, environment: dict[str, str] | None = None, without: Part | None = None
) -> None:
    """Start the whole cast (`without` one part, if need be), `environment` in each of its processes.

    The balancer and the learners that the first one asks to join it come before the rest.
    """
    first = {part.name for part in (cast.balancer, *cast.other_learners)}
    parts = [
        replace(part, environment=part.environment | (environment or {}))
        for part in cast.parts()
        if part is not without
    ]
    await stage.spawn(*[part for part in parts if part.name in first])
    await stage.spawn(*[part for part in parts if part.name not in first])
