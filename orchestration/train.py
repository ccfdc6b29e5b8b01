"""Training, from a recipe to a run's folder: every stage, an evaluation after each, and the summary.

Invariants:
- whatever ends the run (its end, Ctrl-C, a failure), the stage is closed and the summary says why;
- figures are in metrics.jsonl when they are shown, not at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.messages import (
    DescribeArchive,
    DescribeBalancer,
    DescribeEnvironment,
    DescribeGenerator,
    NextReports,
    RunEvaluation,
    RunFineTuning,
    RunReinforcement,
    StageDone,
)
from actors.storage.disk import CannotWrite, writing
from actors.supervision import patiently
from actors.system.actor import ActorError, ActorRef, DeadlineExceeded, Port, in_a_line
from actors.system.kill_point import kill_variable
from actors.system.message import Message, Request
from actors.system.ray_stage import RayStage
from actors.system.stage import Death
from orchestration.analysis_report import write_analysis
from orchestration.cast import Cast, cast_for, enter
from orchestration.data.prepare import DATA, prepare_data
from orchestration.evaluation.estimators import accuracy_interval
from orchestration.examples import write_examples
from orchestration.metrics import MetricsSink
from orchestration.placing import carrying, placed
from orchestration.progress import Progress, format_figure
from orchestration.recipe import Recipe
from orchestration.report import write_report
from orchestration.resume import Beginning
from orchestration.run_folder import write_json, write_recipe, write_versions
from orchestration.standing import Standing
from orchestration.tiny_model import write_scratch_model
from policies.dialogue import DialogueLimits
from policies.options import LimitOptions
from policies.run_progress import Report, Rewound, StepFigures
from policies.stages import FineTuningOptions

STATUS_DEADLINE_S = 60.0
DIRECTOR = ActorRef("director")
SHOWN = (
    "learner_loss",
    "reward_mean",
    "tool_error_share_in_correct",
    "response_tokens_mean",
    "queued_share",
    "tokens_per_s",
    "time_total_s",
)
"""Figures of a step that the display shows."""


type Beside = Callable[[RayStage, Cast], contextlib.AbstractAsyncContextManager[Any]]


class Training:
    """One run of a recipe.

    Example:
        summary = await Training(recipe, folder, progress, sink).run()
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        progress: Progress,
        sink: MetricsSink,
        beginning: Beginning | None = None,
        kill_at: str | None = None,
        beside: Beside | None = None,
    ) -> None:
        """
        Args:
            kill_at: a phase at which the whole run is killed (`actors.system.kill_point`).
            beside: entered when the actors have started, left before they are stopped.
        """
        self._beside = beside
        self._recipe, self._folder, self._progress, self._sink = recipe, folder, progress, sink
        self._beginning = beginning or Beginning()
        self._environment = {} if kill_at is None else kill_variable(kill_at)
        self._started = time.monotonic()
        self._taken = 0
        self._summary: dict[str, Any] = {
            "name": recipe.name,
            "seed": recipe.seed,
            "engine": None,
            "sandbox": None,
            "wall_seconds": 0.0,
            "times_resumed": self._beginning.times_resumed,
            "finished": False,
            "reason": "",
            "stages": [],
            "might_not_repeat": [],
            "deaths": {},
            "rewinds": [],
            "set_aside": [],
        }

    async def run(self) -> dict[str, Any]:
        """Train. Returns the summary, which is in summary.json too; raises what ended the run early."""
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_recipe(self._recipe, self._folder)
            write_versions(self._folder)
        try:
            await self._train()
            self._summary["finished"] = True
        except BaseException as error:
            interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            self._summary["reason"] = "interrupted" if interrupted else in_a_line(error)
            raise
        finally:
            self._summary["wall_seconds"] = self._seconds()
            self._write_summary()
        return self._summary

    def _write_summary(self) -> None:
        summary = self._folder / "summary.json"
        for what, write in (
            ("the last figures", self._sink.close),
            ("summary.json", lambda: write_json(summary, self._summary)),
            ("report.html", lambda: write_report(self._folder)),
        ):
            try:
                with writing(self._folder):
                    write()
            except CannotWrite as error:
                if self._summary["finished"]:
                    raise
                self._progress.note(f"without {what}: {error}")  # what ended the run is said all the same

    async def _train(self) -> None:
        with writing(self._folder):
            recipe = self._recipe
            model = recipe.model.path or write_scratch_model(recipe.model, recipe.seed, self._folder / "model")
            recipe = self._recipe = prepare_data(recipe, model, self._folder / DATA, self._progress.note)
        cast = cast_for(recipe, model=model, folder=self._folder, run_id=self._folder.name, beginning=self._beginning)
        for note in self._beginning.notes:
            self._progress.note(note)
        self._progress.note(f"starting {len(list(cast.parts()))} actors")
        async with RayStage(
            seed=recipe.seed,
            name=self._folder.name,
            log_dir=self._folder / "logs",
            address=recipe.cluster.address or None,
            allow_open=recipe.cluster.allow_open,
            frozen_after_s=recipe.supervision.frozen_after_seconds,
        ) as stage:
            cast = await carrying(placed(cast, recipe), recipe, stage.carry)
            standing = Standing(cast)
            stage.on_death(standing.heard)
            stage.on_death(self._note_death)
            await enter(stage, cast, self._environment)
            self._event("started", {"actors_started_s": self._seconds()})
            relay = asyncio.create_task(self._relay(stage.port))
            relay.add_done_callback(lambda ended: _pass_on(ended, standing))
            try:
                async with contextlib.nullcontext() if self._beside is None else self._beside(stage, cast):
                    await standing.while_it_lasts(self._stages(stage.port))
                    await standing.while_it_lasts(self._describe(stage.port))
                with writing(self._folder):
                    write_examples(self._folder, model, recipe.prompt)
                    write_analysis(self._folder, model)
            finally:
                relay.cancel()
                await asyncio.gather(relay, return_exceptions=True)

    def _note_death(self, death: Death) -> None:
        after = "it is started again" if death.restarting else "it is not started again"
        self._progress.note(f"{death.name} died ({death.in_a_line}); {after}")
        self._summary["deaths"][death.name] = self._summary["deaths"].get(death.name, 0) + 1

    async def _stages(self, port: Port) -> None:
        recipe = self._recipe
        before = recipe.evaluation.before
        if before or (before is None and not isinstance(next(iter(recipe.stages.values())), FineTuningOptions)):
            await self._evaluate(port, "start")
        for name, options in recipe.stages.items():
            if name in self._beginning.progress.done:
                self._progress.note(f"{name} is done")
            else:
                position = self._beginning.progress.current
                done = position.steps if position is not None and position.stage == name else 0
                self._progress.start_stage(name, options.steps, done)
            limits = self._limits(options.limits)
            if isinstance(options, FineTuningOptions):
                await self._ask(port, RunFineTuning(name=name, options=options, limits=limits))
            else:
                await self._ask(port, RunReinforcement(name=name, options=options, limits=limits))
            await self._evaluate(port, name)

    async def _evaluate(self, port: Port, name: str) -> None:
        options = self._recipe.evaluation
        request = RunEvaluation(name=name, options=options, limits=self._limits(options.limits))
        figures = (await self._ask(port, request)).figures
        low, high = accuracy_interval(figures)
        self._summary["stages"].append(
            {
                "name": name,
                "accuracy": figures["accuracy"],
                "accuracy_low": low,
                "accuracy_high": high,
                "problems": round(figures["problems"] or 0.0),
                "mean_response_tokens": figures["mean_response_tokens"],
                "mean_tool_calls": figures["mean_tool_calls"],
                "tool_call_rate": figures["tool_call_rate"],
                "format_rate": figures["format_rate"],
                "tool_error_share_in_correct": figures["tool_error_share_in_correct"],
            }
        )

    def _limits(self, limits: LimitOptions) -> DialogueLimits:
        return DialogueLimits(**limits.model_dump(), tools=self._recipe.tools)

    async def _ask(self, port: Port, request: Request[StageDone]) -> StageDone:
        done = await port.ask(DIRECTOR, request)  # a stage may take weeks, and the director watches those who work
        await self._catch_up(port)
        return done

    async def _relay(self, port: Port) -> None:
        """Bring the director's reports to the metrics and the display, as they come."""
        while True:
            with contextlib.suppress(DeadlineExceeded):  # it may be stopped, or very busy: the next one will do
                await self._catch_up(port, patience_s=5.0)

    async def _catch_up(self, port: Port, patience_s: float = 0.0) -> None:
        """Take in all reports that there are; if there are none, wait for one as long as `patience_s`."""
        reports = await port.ask(DIRECTOR, NextReports(after=self._taken, patience_s=patience_s), STATUS_DEADLINE_S)
        for number, report in enumerate(reports.reports, reports.next - len(reports.reports)):
            if number >= self._taken:  # the relay and a catch-up may both have asked for it
                self._taken = number + 1
                with writing(self._folder):
                    self._take(report)

    def _take(self, report: Report) -> None:
        if isinstance(report, Rewound):
            self._progress.note(f"going on {report.place}, since the learner died: {report.why.splitlines()[0]}")
            self._summary["rewinds"].append({"place": report.place, "why": report.why})
            self._sink.rewind(report.progress)
            return
        figures = dict(report.figures)
        if self._recipe.deterministic and report.kind == "step":
            self._look_for_chance(report)
        for name, what in (("dropped", "no actor could play"), ("void", "the sandbox failed")):
            if count := figures.get(name):
                text = f"{report.stage}, step {report.step}: {count:.0f} rollouts that {what} were set aside"
                self._progress.note(text)
                self._summary["set_aside"].append(text)
        if report.kind == "evaluation":
            low, high = accuracy_interval(figures)
            figures |= {"accuracy_low": low, "accuracy_high": high}
            self._progress.note(
                f"held-out accuracy after {report.stage}: {figures['accuracy']:.1%} ({low:.1%} to {high:.1%}), "
                "tool errors in correct trajectories: "
                + format_figure("tool_error_share_in_correct", figures["tool_error_share_in_correct"])
            )
        else:
            self._progress.update(report.step, **{name: figures[name] for name in SHOWN if name in figures})
        self._sink.write(report.kind, report.stage, report.step, **figures)

    def _look_for_chance(self, report: StepFigures) -> None:
        """Say when the wall clock, or a death, may have had a say in a deterministic run."""
        for name, what in (("calls_timed_out", "tool calls hit their time limit"), ("dropped", "rollouts were lost")):
            if count := report.figures.get(name):
                text = f"{report.stage}, step {report.step}: {count:.0f} {what}"
                self._progress.note(f"might not repeat: {text}")
                self._summary["might_not_repeat"].append(text)

    def _event(self, name: str, figures: dict[str, float]) -> None:
        self._sink.write("event", name, 0, **figures)
        self._progress.note(f"{name} after {self._seconds():.0f} s")

    async def _describe(self, port: Port) -> None:
        """What the summary says of the actors."""
        statuses = await self._each(port, "generator", self._recipe.generators.count, DescribeGenerator())
        environments = await self._each(port, "environment", self._recipe.environments.count, DescribeEnvironment())
        turns = sum(status.turns_served for status in statuses) or 1
        balancer = await patiently(port, ActorRef("balancer"), DescribeBalancer(), STATUS_DEADLINE_S)
        archive = await patiently(port, ActorRef("archive"), DescribeArchive(), STATUS_DEADLINE_S)
        self._summary |= {
            "engine": next((status.engine for status in statuses), None),
            "sandbox": next((status.sandbox for status in environments), None),
            "isolation": next((status.isolation for status in environments), None),
            "weaknesses": sorted({text for status in environments for text in status.weaknesses}),
            "tool_calls": sum(status.calls_run for status in environments),
            "sandbox_failures": sum(status.sandbox_failures for status in environments),
            "generators": {
                status.capacity.generator: {
                    "turns": status.turns_served,
                    "share": status.turns_served / turns,
                    "kv_tokens": status.capacity.kv_tokens,
                }
                for status in statuses
            },
            "peak_in_flight": balancer.peak_leases,
            "queued_share": balancer.queued_total / (balancer.granted_total or 1),
            "trajectories": archive.trajectories,
        }

    async def _each[R: Message](self, port: Port, kind: str, count: int, request: Request[R]) -> list[R]:
        """What the actors of a kind answer; those that are dead for good are left out."""
        answers = []
        for index in range(count):
            with contextlib.suppress(ActorError):
                answers.append(await patiently(port, ActorRef(f"{kind}-{index}"), request, STATUS_DEADLINE_S))
        return answers

    def _seconds(self) -> float:
        """That the run has taken, those before it was resumed included."""
        return self._beginning.wall_seconds + time.monotonic() - self._started


def _pass_on(relay: asyncio.Task[None], standing: Standing) -> None:
    """A run whose figures can't be written, or whose director is lost, must not go on unseen."""
    if not relay.cancelled() and (error := relay.exception()) is not None:
        standing.end(error)
