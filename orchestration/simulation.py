"""One stage of a recipe, rehearsed on the virtual stage with one strategy: what was seen, in figures.

The actors are those of a training run, except for the understudies of `orchestration.simulated_cast`; so the figures of
a simulated step come about as those of a real one do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from actors.engines.simulated_engine import SimulatedEngine
from actors.generator import GeneratorActor
from actors.messages import (
    CallFinished,
    NextReports,
    RestoreCheckpoint,
    RolloutFinished,
    RunCall,
    RunReinforcement,
)
from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFaultPlan
from actors.system.trace import Event, Trace
from actors.system.virtual_loop import NS, run_virtual
from actors.system.virtual_member import Network
from actors.system.virtual_stage import VirtualStage
from orchestration.cast import enter
from orchestration.engine_series import EngineSeries, EngineWatch
from orchestration.invariants import Invariants
from orchestration.recipe import Recipe, RecipeError
from orchestration.scratch_folder import scratch_folder
from orchestration.simulated_cast import simulated_cast
from policies.balancing import BalancerOptions, most_promised
from policies.curriculum import ProblemOptions
from policies.dialogue import DialogueLimits
from policies.makespan_bound import lower_bound
from policies.run_progress import Figures, that_count
from policies.scripted import Script
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory

DIRECTOR = ActorRef("director")
SAMPLES = 400
"""Looks at the engines that the time series of a page has at least, in a run as long as was expected."""
TAIL = 0.1
"""Share of rollouts that finish last: their time is the tail."""
NEWS = 100
"""How often a run tells how far it is."""


@dataclass(slots=True)
class Rehearsal:
    """What came of one strategy."""

    strategy: str
    figures: dict[str, float]
    trace_hash: str
    events: int
    wall_seconds: float
    """Processor time that the simulation took."""
    series: EngineSeries
    steps: list[dict[str, float]]
    """Of each step, under the names of a run's metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What to rehearse."""

    recipe: Recipe
    stage: str
    steps: int = 1
    balancer: BalancerOptions
    plan: ActorFaultPlan | None = None
    explore: int | None = None
    restarts: int = 0
    workload: Script | None = None
    """What models say; None: what the recipe says that they do."""
    contents: bool = False
    """Whether the trace hashes what messages say."""
    first_event: int = 1
    last_event: int | None = None
    show: Callable[[str], None] | None = None
    """Called with each event from `first_event` on."""
    told: Callable[[float], None] | None = None
    """Called now and then with the share of the rollouts that have ended."""

    def options(self) -> ReinforcementOptions:
        """Of the stage. Raises `RecipeError` if it is not one of reinforcement."""
        # Dialogues are scripted: what the problems say plays no part, and their data need not be here.
        update = {"steps": self.steps, "problems": ProblemOptions(), "move_on": None}
        return stage_options(self.recipe, self.stage).model_copy(update=update)


def stage_options(recipe: Recipe, stage: str) -> ReinforcementOptions:
    """The options of a stage that can be simulated. Raises `RecipeError` if it is not one of reinforcement."""
    options = recipe.stages.get(stage)
    if not isinstance(options, ReinforcementOptions):
        known = [name for name, each in recipe.stages.items() if isinstance(each, ReinforcementOptions)]
        raise RecipeError(
            f"stage {stage!r} can't be simulated; stages of reinforcement are {', '.join(known) or 'none'}"
        )
    return options


class NotRepeatable(AssertionError):
    """A setting gave another run when it was run again: the text says what differs."""


def rehearse_twice(setting: Setting) -> Rehearsal:
    """As `rehearse`, and once more, to see that the run is the same.

    Raises `NotRepeatable`, and what `rehearse` raises.
    """
    once, again = _Run(setting).result(), _Run(setting).result()
    if (once.trace_hash, once.events) != (again.trace_hash, again.events):
        raise NotRepeatable(
            f"not the same when run again: trace {once.trace_hash} of {once.events} events, "
            f"then {again.trace_hash} of {again.events}"
        )
    if once.figures != again.figures:
        raise NotRepeatable(f"the same trace, but not the same figures: {once.figures}, then {again.figures}")
    return once


def rehearse(setting: Setting) -> Rehearsal:
    """Run the setting in virtual time.

    Raises what the run raises: `Violation` if an invariant breaks, `Stalled` if nothing can happen any more,
    `EnoughTraced` after `last_event`.
    """
    return _Run(setting).result()


class _Run:
    """One run of a setting."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._recipe, self._options = setting.recipe, setting.options()
        self._trace = Trace(
            contents=setting.contents, show=setting.show, first=setting.first_event, last=setting.last_event
        )
        self._trajectories: dict[str, tuple[int, Trajectory]] = {}
        """Rollout -> when it was first answered, and with what: a message that comes twice is answered twice."""
        self._calls: dict[str, int] = {}
        self._call_seconds: list[float] = []
        self._steps: list[dict[str, float]] = []
        self._generators: list[GeneratorActor] = []
        self._ended = 0

    def result(self) -> Rehearsal:
        began = time.process_time()
        # Made and removed out here: a run that is interrupted has no virtual time left to clean up in.
        with scratch_folder("greenroom-simulation-") as folder:
            figures = run_virtual(self._play(folder), explore=self._setting.explore)
        return Rehearsal(
            strategy=self._setting.balancer.strategy,
            figures=figures,
            trace_hash=self._trace.hash(),
            events=self._trace.events,
            wall_seconds=time.process_time() - began,
            series=self._engines.series,
            steps=self._steps,
        )

    async def _play(self, folder: Path) -> dict[str, float]:
        recipe, setting = self._recipe, self._setting
        jitter = 0.0 if setting.explore is None else 0.002
        stage = VirtualStage(
            seed=recipe.seed,
            network=Network(jitter_s=jitter),
            plan=setting.plan,
            trace=self._trace,
            wire_every=97,
        )
        async with stage:
            cast = simulated_cast(
                recipe,
                balancer=setting.balancer,
                folder=folder,
                restarts=setting.restarts,
                workload=setting.workload,
            )
            await enter(stage, cast)
            invariants = Invariants(stage, cast, most_promised=most_promised(setting.balancer))
            self._trace.listen(
                {
                    ("ask", RunCall): self._on_call_asked,
                    ("answer", CallFinished): self._on_call_finished,
                    ("answer", RolloutFinished): self._on_rollout_finished,
                    ("ask", RestoreCheckpoint): self._on_restored,
                }
            )
            self._engines = self._watch_engines(stage)
            limits = DialogueLimits(**self._options.limits.model_dump(), tools=recipe.tools)
            request = RunReinforcement(name=setting.stage, options=self._options, limits=limits)
            await stage.port.ask(DIRECTOR, request)
            reports = (await stage.port.ask(DIRECTOR, NextReports(after=0))).reports
            self._engines.end()
            steps = self._steps = [_numbers(report.figures) for report in that_count(reports) if report.kind == "step"]
            await invariants.at_the_end(round(sum(step["dropped"] for step in steps)))
            figures = self._figures(steps)
            self._trajectories.clear()  # else the first collection after the run would go through all that they hold
            return figures

    def _watch_engines(self, stage: VirtualStage) -> EngineWatch:
        options, count = self._options, self._recipe.generators.count
        tokens = options.prompts * options.sampled * options.limits.max_tokens / 2
        refs = [ActorRef(f"generator-{index}") for index in range(count)]
        self._generators = [actor for ref in refs if isinstance(actor := stage.actor(ref), GeneratorActor)]
        return EngineWatch(
            stage,
            refs,
            kv_tokens=self._kv_tokens(),
            interval_s=max(0.05, tokens / count / 2000 / SAMPLES),
        )

    def _kv_tokens(self) -> int:
        """Of each engine: what it holds in whole blocks, which may be more than the recipe's `kv_tokens`."""
        engine = self._recipe.generators.engine
        assert engine.kv_blocks is not None, "the cast asks for it"
        return engine.kv_blocks * engine.block_tokens

    def _on_call_asked(self, event: Event) -> None:
        assert isinstance(event.message, RunCall)
        self._calls.setdefault(event.message.call.id, event.now_ns)

    def _on_call_finished(self, event: Event) -> None:
        assert isinstance(event.request, RunCall)
        began = self._calls.pop(event.request.call.id, None)
        if began is not None:
            self._call_seconds.append((event.now_ns - began) / NS)

    def _on_rollout_finished(self, event: Event) -> None:
        assert isinstance(event.message, RolloutFinished)
        self._trajectories.setdefault(event.message.trajectory.id, (event.now_ns, event.message.trajectory))
        self._ended += 1
        if self._setting.told is not None and self._ended % max(1, self._expected() // NEWS) == 0:
            self._setting.told(min(1.0, self._ended / self._expected()))

    def _expected(self) -> int:
        """Rollouts, if no group has to be played beyond those of its step."""
        return self._options.steps * self._options.prompts * self._options.sampled

    def _on_restored(self, _: Event) -> None:
        """A rehearsal keeps no checkpoints: it has gone back to its beginning."""
        self._trajectories.clear()
        self._calls.clear()
        self._call_seconds.clear()

    # --- figures ----------------------------------------------------------------------------------

    def _figures(self, steps: list[dict[str, float]]) -> dict[str, float]:
        """What the stage's steps were like, on average; counts are of all of them together."""
        recipe, count, n = self._recipe, self._recipe.generators.count, len(steps)
        makespan = sum(step["time_rollout_s"] for step in steps) / n
        step_s = sum(step["time_total_s"] for step in steps) / n
        trajectories = [trajectory for _, trajectory in self._trajectories.values()]
        engine = recipe.generators.engine
        bound = lower_bound(
            trajectories,
            cost=recipe.simulation.cost,
            engines=count,
            kv_tokens=self._kv_tokens(),
            max_running=engine.max_running,
        )
        engines = [actor.engine for actor in self._generators]
        counts = [engine.counts() for engine in engines if isinstance(engine, SimulatedEngine)]
        busy = sum(step.get(f"busy_share_generator-{i}", 0.0) for step in steps for i in range(count)) / n / count
        generated = sum(each.generated_tokens for each in counts)
        idle_after = [step["generator_idle_share"] for step in steps if "generator_idle_share" in step]
        recomputed = sum(each.recomputed_tokens for each in counts)
        looked_up = sum(each.lookup_tokens for each in counts)
        while_rolling = [
            share
            for seconds, shares in zip(self._engines.series.seconds, self._engines.series.kv_share, strict=True)
            if seconds <= makespan
            for share in shares
        ]
        waits = sorted(trajectory.waited_seconds for trajectory in trajectories)
        calls = sorted(self._call_seconds)
        return {
            "makespan_s": makespan,
            "lower_bound_s": bound / n,
            "ratio": makespan / (bound / n),
            "idle_engine_s": (1 - busy) * count * (step_s if self._options.max_staleness else makespan),
            "idle_share": 1 - busy,
            "generator_idle_share": sum(idle_after) / len(idle_after) if idle_after else 0.0,
            "staleness_mean": sum(step.get("staleness_mean", 0.0) for step in steps) / n,
            "groups_too_old": sum(step["groups_too_old"] for step in steps),
            "kv_mean": sum(step.get(f"kv_used_share_generator-{i}", 0.0) for step in steps for i in range(count))
            / n
            / count,
            "kv_p99": quantile(sorted(while_rolling), 0.99),
            "preemptions": float(sum(each.preemptions for each in counts)),
            "recomputed_tokens": float(recomputed),
            "recomputed_share": recomputed / generated if generated else 0.0,
            "prefix_hit_share": sum(each.hit_tokens for each in counts) / looked_up if looked_up else 0.0,
            "queue_wait_mean_s": sum(waits) / len(waits) if waits else 0.0,
            "queue_wait_p99_s": quantile(waits, 0.99),
            "tail_share": self._tail(makespan) if n == 1 else 0.0,
            "steps": float(n),
            "tool_calls": float(len(calls)),
            "tool_latency_mean_s": sum(calls) / len(calls) if calls else 0.0,
            "tool_latency_p99_s": quantile(calls, 0.99),
            "tokens_per_s": sum(step["tokens_per_s"] for step in steps) / n,
            "rollouts": float(len(trajectories)),
            "dropped": sum(step["dropped"] for step in steps),
            "truncated_share": sum(step["truncated_share"] for step in steps) / n,
            "response_tokens_mean": sum(step["response_tokens_mean"] for step in steps) / n,
            "step_s": step_s,
            "run_s": step_s * self._recipe.stages[self._setting.stage].steps,
        }

    def _tail(self, makespan: float) -> float:
        """Share of the time in which the last rollouts finish."""
        ends = sorted(end for end, _ in self._trajectories.values())
        if not ends or makespan <= 0:
            return 0.0
        most = ends[max(0, round(len(ends) * (1 - TAIL)) - 1)]
        return min(1.0, (ends[-1] - most) / NS / makespan)


def _numbers(figures: Figures) -> dict[str, float]:
    """Those that were measured."""
    return {name: value for name, value in figures.items() if value is not None}


def quantile(ordered: list[float], share: float) -> float:
    """The value that `share` of the ordered values do not exceed; 0 if there are none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
