"""`greenroom drill --virtual`: a small run of a recipe under many fault plans; a plan that breaks it is shrunk.

Each seed draws a plan (`ActorFaultPlan.draw`) and an order of actors (`explore`). The run has to end, with every
invariant kept, all rollouts accounted for, and not much later than the faults can explain. It is run twice, and must be
the same both times, message for message.

Killed are all actors but the director, which directs the run; the learner's death takes the run back to its
beginning, since a drill keeps no checkpoints. All actors freeze, are slow, and get messages late, twice, after a
resend; those of which there are several also lose some for good.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.system.actor import ActorError
from actors.system.actor_faults import ActorFaultKind, ActorFaultPlan, shrink
from actors.system.virtual_loop import Stalled
from orchestration.invariants import Violation
from orchestration.recipe import Recipe
from orchestration.side_by_side import Told, side_by_side
from orchestration.simulate import first_stage
from orchestration.simulation import NotRepeatable, Rehearsal, Setting, rehearse_twice
from policies.stages import ReinforcementOptions

STEPS, PROMPTS, GROUP = 2, 4, 4
GENERATORS, ENVIRONMENTS, ROLLOUTS = 3, 2, 2
RESTARTS = 20
"""More than any plan kills."""
LEARNER_DEATHS = 2
"""The most in a plan: a run whose learner keeps dying at one place ends, and should."""
PATIENCE_S = 300.0
"""Time that one fault may cost: a frozen actor, a restart, a mailbox that gives up, and work done anew."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A plan that broke the run."""

    seed: int
    plan: ActorFaultPlan
    shrunk: ActorFaultPlan
    reason: str


def miniature(recipe: Recipe) -> Recipe:
    """The recipe with few actors and small steps."""
    stage = first_stage(recipe)
    options = recipe.stages[stage]
    assert isinstance(options, ReinforcementOptions), "only these are simulated"
    small = options.model_copy(update={"steps": STEPS, "prompts": PROMPTS, "group": GROUP})
    return recipe.model_copy(
        update={
            "generators": recipe.generators.model_copy(update={"count": GENERATORS}),
            "environments": recipe.environments.model_copy(update={"count": ENVIRONMENTS}),
            "rollouts": recipe.rollouts.model_copy(update={"count": ROLLOUTS}),
            "stages": {stage: small},
        }
    )


def repeat_command(recipe: Path, overrides: Sequence[str], failure: Failure) -> str:
    """Writes the shrunk plan into the working directory and returns the command that runs it again."""
    path = Path(f"plan-{failure.seed}.json")
    path.write_text(failure.shrunk.model_dump_json(indent=1))
    settings = "".join(f" --set {shlex.quote(each)}" for each in overrides)
    return f"greenroom drill {shlex.quote(str(recipe))} --virtual --plan {path} --first {failure.seed}{settings}"


class Drill:
    """Runs plans against a miniature of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = miniature(recipe)
        self._stage = first_stage(self._recipe)
        self._calm_s = self._rehearse(ActorFaultPlan(), None).figures["step_s"] * STEPS

    def plan(self, seed: int) -> ActorFaultPlan:
        """The plan of a seed."""
        several = [f"generator-{index}" for index in range(GENERATORS)]
        several += [f"environment-{index}" for index in range(ENVIRONMENTS)]
        several += [f"rollout-{index}" for index in range(ROLLOUTS)]
        mortal = [*several, "balancer", "archive", "learner"]
        kinds: tuple[ActorFaultKind, ...] = ("kill", "freeze", "slow", "delay", "drop", "double", "lose")
        actors = [*mortal, "director"]
        plan = ActorFaultPlan.draw(seed, actors=actors, until=self._calm_s, kinds=kinds, killable=mortal)
        kept = [fault for fault in plan.faults if fault.kind != "lose" or fault.actor in several]
        of_the_learner = [fault for fault in kept if fault.kind == "kill" and fault.actor == "learner"]
        too_many = of_the_learner[LEARNER_DEATHS:]
        return ActorFaultPlan(faults=tuple(fault for fault in kept if fault not in too_many))

    def fault_of(self, plan: ActorFaultPlan, explore: int | None) -> str:
        """Why a run under a plan is not as it should be; empty if it is."""
        try:
            once = self._rehearse(plan, explore)
        except (Violation, Stalled, ActorError, NotRepeatable) as error:
            lines = str(error).strip().splitlines()
            return f"{type(error).__name__}: {lines[0]}" + (f" ... {lines[-1].strip()}" if len(lines) > 1 else "")
        took, most = once.figures["step_s"] * STEPS, 2 * self._calm_s + PATIENCE_S * len(plan.faults)
        if took > most:
            return f"took {took:.0f} s of virtual time; {self._calm_s:.0f} s without faults, at most {most:.0f} s with"
        accounted = once.figures["rollouts"] + once.figures["dropped"]
        refills = sum(step["refill_groups"] for step in once.steps)
        expected = (STEPS * PROMPTS + refills + once.figures["groups_too_old"]) * self._options().sampled
        if accounted != expected:
            return f"{accounted:.0f} rollouts are accounted for, {expected:.0f} were asked for"
        return ""

    def run(self, seeds: Sequence[int], heard: Callable[[int, str], None], *, jobs: int = 1) -> list[Failure]:
        """Run the plans of all seeds, up to `jobs` at once; `heard` is told how each went, in their order."""
        found = side_by_side(
            self._look_at,
            seeds,
            jobs=jobs,
            done=lambda index, failure: heard(seeds[index], "" if failure is None else failure.reason),
        )
        return [failure for failure in found if failure is not None]

    def _look_at(self, seed: int, told: Told) -> Failure | None:
        """None if the seed's plan passes."""
        plan = self.plan(seed)
        if not self.fault_of(plan, seed):
            return None
        shrunk = shrink(plan, lambda part: bool(self.fault_of(part, seed)))
        return Failure(seed, plan, shrunk, self.fault_of(shrunk, seed))

    def _rehearse(self, plan: ActorFaultPlan, explore: int | None) -> Rehearsal:
        logging.getLogger("actors").setLevel(logging.CRITICAL)  # faults are expected here, and are in the plan
        return rehearse_twice(
            Setting(
                recipe=self._recipe,
                stage=self._stage,
                steps=STEPS,
                balancer=self._recipe.balancer,
                plan=plan,
                explore=explore,
                restarts=RESTARTS,
                contents=True,
            )
        )

    def _options(self) -> ReinforcementOptions:
        options = self._recipe.stages[self._stage]
        assert isinstance(options, ReinforcementOptions), "only these are simulated"
        return options
