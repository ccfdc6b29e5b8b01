"""Replay to the schedule: stored lengths, turns and tool times drive the simulator; what would have happened, next to
what did.

Invariants:
- rollouts say what they said, and calls take what they took; only when things happen is the simulator's;
- what was fitted to the record is not what the prediction is judged by: the machine is fitted to the first half of the
  steps, and the error is that of the makespans in the other half.

`greenroom calibrate` measures an engine that has its cores for itself. In a run on shared cores, engines, sandboxes and
actors take them from one another. Two figures stand for that: an engine's step takes `load` times as long (fitted to
the engines' busy seconds), and each step of the run takes `overhead_s` longer than what engines, tools and queues
explain (messages, questions and storing that wait for a core). Where every actor has cores of its own, they come out
near 1 and 0.

A machine that other work shares does not stay what it was in the fitted steps. So the error is told in two parts: how
much longer engines' steps took in the judged half than in the fitted one (`drift`), and what the error would be with
the load of the judged half itself (`error_at_own_load`), which is the part that the simulator is to blame for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from actors.simulated_learner import LearnerCost
from orchestration.archived_workload import archived_workload
from orchestration.metrics import figure
from orchestration.recipe import Recipe, RecipeError
from orchestration.replay.recorded_run import RecordedRun
from orchestration.simulation import Rehearsal, Setting, rehearse
from policies.recorded_workload import RecordedWorkload
from policies.stages import ReinforcementOptions
from policies.step_cost import StepCost

FITTING_ROUNDS = 3
"""The load changes which sequences share a step, so it is fitted again under its own effect."""
TARGET = 0.1
"""A prediction is good within this share of the makespan, or within twice the spread of repeats."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a step of the run took."""

    step: int
    """From 1."""
    makespan_s: float
    learn_s: float
    sync_s: float
    busy_engine_s: float
    """Seconds in which engines stepped, all of them together."""


@dataclass(frozen=True, slots=True)
class Machine:
    """How the machine of a run differs from an engine alone; see the module's docstring."""

    load: float
    overhead_s: float
    fitted_steps: int
    """The first so many steps are those that it was fitted to; 0 if it was given."""


@dataclass(slots=True)
class ScheduleReplay:
    """One stage under one or several strategies."""

    stage: str
    recorded_strategy: str
    recorded: list[RecordedStep]
    machine: Machine
    rehearsals: list[Rehearsal]
    comparable: bool
    """Whether cluster and KV are the run's own, so that its strategy's prediction can be judged."""
    repeats_s: list[float] = field(default_factory=list)
    """Mean makespan of the stage in further runs of the same recipe."""
    drift: float | None = None
    """Load of the judged steps over that of the fitted ones, minus 1; None where nothing was fitted, or is judged."""
    error_at_own_load: float | None = None
    """As `error`, at the load of the judged steps."""

    @property
    def judged(self) -> slice:
        """The steps that a prediction is judged by."""
        fitted = self.machine.fitted_steps
        return slice(fitted if fitted < len(self.recorded) else 0, None)

    @property
    def real_s(self) -> float:
        """Mean makespan of the steps that a prediction is judged by."""
        return fmean(step.makespan_s for step in self.recorded[self.judged])

    def predicted_s(self, rehearsal: Rehearsal) -> float:
        """Mean makespan of the same steps, simulated."""
        return fmean(self.makespans(rehearsal)[self.judged])

    def makespans(self, rehearsal: Rehearsal) -> list[float]:
        """What each step would have taken."""
        return [step["time_rollout_s"] + self.machine.overhead_s for step in rehearsal.steps]

    @property
    def error(self) -> float | None:
        """(predicted - real) / real under the run's own strategy; None if that was not rehearsed."""
        own = self.own
        return None if own is None else self.predicted_s(own) / self.real_s - 1

    @property
    def own(self) -> Rehearsal | None:
        """The rehearsal of what the run did; None if there is none."""
        own = next((each for each in self.rehearsals if each.strategy == self.recorded_strategy), None)
        return own if self.comparable else None

    @property
    def spread(self) -> float | None:
        """(longest - shortest) / mean of the run's and the repeats' mean makespans; None without repeats."""
        if not self.repeats_s:
            return None
        times = [fmean(step.makespan_s for step in self.recorded), *self.repeats_s]
        return (max(times) - min(times)) / fmean(times)

    @property
    def allowed(self) -> float:
        """The error up to which a prediction is good."""
        return max(TARGET, 2 * (self.spread or 0.0))


def recorded_steps(run: RecordedRun, stage: str, engines: int) -> list[RecordedStep]:
    """The steps of a stage that the run's metrics tell of, in order. Raises `RecipeError` if there are none."""
    found = []
    for step, record in sorted(run.metrics("step", stage).items()):
        makespan, learn, sync = (figure(record, f"time_{name}_s") for name in ("rollout", "learn", "sync"))
        if makespan is not None:
            found.append(RecordedStep(step + 1, makespan, learn or 0.0, sync or 0.0, _busy_s(record, engines)))
    if not found:
        raise RecipeError(f"{run.folder} has no metrics of stage {stage!r}; there is nothing to compare with")
    return found


def replay_schedule(
    run: RecordedRun,
    recipe: Recipe,
    stage: str,
    *,
    strategies: Sequence[str],
    machine: Machine | None,
    repeats: Sequence[RecordedRun] = (),
    rehearsing: Callable[[list[Setting]], list[Rehearsal]] = lambda settings: [rehearse(each) for each in settings],
) -> ScheduleReplay:
    """Rehearse a stored stage.

    Args:
        recipe: the run's, with the cluster to try and with the engine's cost model.
        machine: None: fitted to the record.
        repeats: further runs of the same recipe, for the spread of makespans.
        rehearsing: rehearses the strategies.

    Raises `RecipeError` for a stage that can't be rehearsed, and what `rehearse` raises.
    """
    own = run.required_recipe()
    options = own.stages.get(stage)
    if not isinstance(options, ReinforcementOptions):
        raise RecipeError(f"--stage {stage!r}: choose of {', '.join(run.reinforced(own)) or 'none'}")
    if options.max_staleness:
        raise RecipeError(
            f"stage {stage!r} is asynchronous: rollouts of several steps run at once, and no step has a makespan that "
            "could be compared; `greenroom simulate RECIPE --workload RUN` rehearses it"
        )
    recorded = recorded_steps(run, stage, own.generators.count)
    workload = archived_workload(run.archive, {stage: stage})
    steps = min(len(recorded), workload.shape(stage)[0])
    recorded = recorded[:steps]
    own, recipe = (with_recorded_learner(each, recorded) for each in (own, recipe))
    if machine is None:
        cost = {"cost": recipe.simulation.cost}
        costed = own.model_copy(update={"simulation": own.simulation.model_copy(update=cost)})
        machine = fitted_machine(costed, stage, workload, recorded[: max(1, steps // 2)])
    loaded = with_load(recipe, machine.load)
    replay = ScheduleReplay(
        stage=stage,
        recorded_strategy=own.balancer.strategy,
        recorded=recorded,
        machine=machine,
        rehearsals=rehearsing([_setting(loaded, stage, steps, workload, name) for name in strategies]),
        comparable=recipe.generators == own.generators and recipe.environments == own.environments,
        repeats_s=[_mean_makespan(each, stage, own.generators.count) for each in repeats],
    )
    if replay.own is not None and 0 < machine.fitted_steps < steps:
        engines, judged = own.generators.count, replay.judged
        simulated = sum(_busy_s(step, engines) for step in replay.own.steps[judged])
        replay.drift = sum(step.busy_engine_s for step in recorded[judged]) / simulated - 1
        at_own_load = with_load(recipe, machine.load * (1 + replay.drift))
        again = _rehearsed(at_own_load, stage, steps, workload, own.balancer.strategy)
        replay.error_at_own_load = replay.predicted_s(again) / replay.real_s - 1
    return replay


def fitted_machine(recipe: Recipe, stage: str, workload: RecordedWorkload, recorded: Sequence[RecordedStep]) -> Machine:
    """The machine under which these steps take, on average, what they took.

    Args:
        recipe: the run's own, with the engine's cost model.

    Raises `RecipeError` if the run did not note how busy its engines were.
    """
    busy = sum(step.busy_engine_s for step in recorded)
    if not busy:
        raise RecipeError("the run's metrics lack the engines' busy seconds; give the load with --load, such as 1")
    load = 1.0
    for _ in range(FITTING_ROUNDS):
        loaded = with_load(recipe, load)
        simulated = _rehearsed(loaded, stage, len(recorded), workload, recipe.balancer.strategy).steps
        load *= busy / sum(_busy_s(step, recipe.generators.count) for step in simulated)
    simulated = _rehearsed(with_load(recipe, load), stage, len(recorded), workload, recipe.balancer.strategy).steps
    missing = fmean(step.makespan_s for step in recorded) - fmean(step["time_rollout_s"] for step in simulated)
    return Machine(load=load, overhead_s=max(0.0, missing), fitted_steps=len(recorded))


def _busy_s(step: Mapping[str, Any], engines: int) -> float:
    """Seconds in which the engines of a step were busy, all of them together."""
    shares = (figure(step, f"busy_share_generator-{n}") or 0.0 for n in range(engines))
    return sum(shares) * (figure(step, "time_rollout_s") or 0.0)


def with_load(recipe: Recipe, load: float) -> Recipe:
    """The recipe with engine steps that take `load` times as long."""
    cost = StepCost(**{name: value * load for name, value in recipe.simulation.cost.model_dump().items()})
    return recipe.model_copy(update={"simulation": recipe.simulation.model_copy(update={"cost": cost})})


def with_recorded_learner(recipe: Recipe, recorded: Sequence[RecordedStep]) -> Recipe:
    """The recipe with a learner and an update of weights that take what they took on average."""
    learner = LearnerCost(
        parameters=1.0,
        step_seconds=fmean(step.learn_s for step in recorded),
        publish_seconds=fmean(step.sync_s for step in recorded),
        checkpoint_seconds=0.0,
    )
    changes = {"learner": learner, "update_seconds": 0.0}
    return recipe.model_copy(update={"simulation": recipe.simulation.model_copy(update=changes)})


def _rehearsed(recipe: Recipe, stage: str, steps: int, workload: RecordedWorkload, strategy: str) -> Rehearsal:
    return rehearse(_setting(recipe, stage, steps, workload, strategy))


def _setting(recipe: Recipe, stage: str, steps: int, workload: RecordedWorkload, strategy: str) -> Setting:
    balancer = recipe.balancer.model_copy(update={"strategy": strategy})
    return Setting(recipe=recipe, stage=stage, steps=steps, balancer=balancer, workload=workload)


def _mean_makespan(run: RecordedRun, stage: str, engines: int) -> float:
    return fmean(step.makespan_s for step in recorded_steps(run, stage, engines))
