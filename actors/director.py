"""The director: runs stages on the other actors when it is told to, and reports as it goes.

Invariants:
- one stage at a time; a stage asked for again (after a resend) is not run twice;
- weights reach every generator behind the balancer's gate: closed, drained, updated, opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from actors.evaluation import evaluate
from actors.fine_tuning import FineTuning
from actors.messages import (
    BeginStage,
    CloseGate,
    NextReports,
    OpenGate,
    PublishWeights,
    Reports,
    RunEvaluation,
    RunFineTuning,
    RunReinforcement,
    SaveCheckpoint,
    StageDone,
    SyncWeights,
    UpdateWeights,
)
from actors.reinforcement import Reinforcement
from actors.run_books import CheckpointPlan, RunBooks
from actors.sampling import Sampler, Seating, StoredSteps
from actors.supervision import Supervision
from actors.system.actor import Actor, ActorLost, ActorRef, BlobRef, handles
from actors.system.clock import seconds_since
from actors.system.kill_point import reached
from actors.system.message import Done
from actors.tokenizer import PromptOptions, load_chat_format
from policies.options import ObjectiveOptions
from policies.run_progress import NOTHING_DONE, Figures, RunProgress, StagePosition, StepFigures
from policies.trajectory import UNTRAINED, WeightsVersion

log = logging.getLogger(__name__)

LEARNER_DEADLINE_S = 600.0
DRAIN_DEADLINE_S = 3600.0
UPDATE_DEADLINE_S = 600.0
RETRY_S = 2.0
RETURN_S = 180.0
"""How long weights wait for a generator that was lost: it may be restarting."""
LEFT_OUT_S = 20.0
"""How long for one that is known to be gone."""


class DirectorActor(Actor):
    """Directs the other actors of a training run.

    Args:
        model: folder with the tokenizer, which fine-tuning needs; None in a simulation.
        checkpoints: folder that a model is written to after each stage of learning.
        plan: how the checkpoints are written that a run is resumed from; None for none.
        progress: what a run that is resumed has done already.
        restored: earlier names of the weights that it goes on from (`policies.run_progress.same_weights`).
        waves: the share of the generators' KV that is kept free, in a deterministic run.
    """

    def __init__(
        self,
        *,
        model: str | None,
        prompt: PromptOptions,
        run_seed: int,
        learner: ActorRef,
        balancer: ActorRef,
        archive: ActorRef,
        generators: list[ActorRef],
        environments: list[ActorRef],
        rollouts: list[ActorRef],
        checkpoints: str,
        plan: CheckpointPlan | None = None,
        progress: RunProgress = NOTHING_DONE,
        restored: tuple[WeightsVersion, ...] = (),
        waves: float | None = None,
    ) -> None:
        self._model, self._prompt, self._run_seed = model, prompt, run_seed
        self._learner, self._balancer, self._archive = learner, balancer, archive
        self._generators, self._environments, self._rollouts = generators, environments, rollouts
        self._checkpoints = checkpoints
        self._plan, self._progress, self._restored, self._waves = plan, progress, restored, waves
        self._reports: list[StepFigures] = list(progress.untold)
        self._told = 0
        self._news = asyncio.Event()
        self._stage_lock = asyncio.Lock()
        self._in_step = progress.version == UNTRAINED
        """Whether generators have the learner's weights; those of a run that is resumed begin with others."""
        self._version = progress.version

    async def start(self) -> None:
        self._chat = None if self._model is None else load_chat_format(self._model, self._prompt)
        self._sampler = Sampler(
            self.port,
            self._rollouts,
            None if self._waves is None else Seating(self.port, self._generators, self._waves),
            StoredSteps(self.port, self._archive, self._restored) if self._restored else None,
        )
        self._books = RunBooks(
            self.port,
            learner=self._learner,
            archive=self._archive,
            plan=self._plan,
            progress=self._progress,
            untold=lambda: tuple(self._reports[self._told :]),
        )
        self._supervision = Supervision(
            self.port,
            self._balancer,
            self._generators,
            self._rollouts,
            self._environments,
            lambda: self._version,
        )

    @handles(RunFineTuning)
    async def on_fine_tune(self, request: RunFineTuning) -> StageDone:
        async with self._stage_lock:
            done = self._books.done(request.name)
            if done is not None:
                return StageDone(figures=done)
            options = request.options
            assert self._chat is not None, "fine-tuning needs a tokenizer"
            position = self._books.position(request.name)
            await self._begin(
                BeginStage(
                    optimiser=options.optimiser,
                    objective=ObjectiveOptions(),
                    total_steps=options.steps,
                    resumed=position is not None,
                )
            )
            stage = FineTuning(
                self.port,
                request,
                chat=self._chat,
                learner=self._learner,
                environments=self._environments,
                run_seed=self._run_seed,
                position=position,
                stepped=self._stepped,
            )
            figures = await stage.run()
            await self._sync()
            return await self._end(request.name, figures)

    @handles(RunReinforcement)
    async def on_reinforce(self, request: RunReinforcement) -> StageDone:
        async with self._stage_lock:
            done = self._books.done(request.name)
            if done is not None:
                return StageDone(figures=done)
            options = request.options
            position = self._books.position(request.name)
            await self._begin(
                BeginStage(
                    optimiser=options.optimiser,
                    objective=options.objective,
                    total_steps=options.steps,
                    temperature=options.temperature,
                    reset_optimiser=options.reset_optimiser,
                    refresh_reference=options.refresh_reference,
                    resumed=position is not None,
                )
            )
            stage = Reinforcement(
                self.port,
                request,
                sampler=self._sampler,
                learner=self._learner,
                balancer=self._balancer,
                archive=self._archive,
                generators=self._generators,
                run_seed=self._run_seed,
                position=position,
                sync=self._sync,
                stepped=self._stepped,
            )
            return await self._end(request.name, await stage.run())

    @handles(RunEvaluation)
    async def on_evaluate(self, request: RunEvaluation) -> StageDone:
        async with self._stage_lock:
            name = f"evaluation-{request.name}"
            done = self._books.done(name)
            if done is None:
                await self._bring_into_step()
                start = self.port.clock.now_ns()
                done = await evaluate(request, self._sampler)
                done["time_total_s"] = seconds_since(self.port.clock, start)
                self._report(StepFigures(kind="evaluation", stage=request.name, step=0, figures=done))
                await self._books.ended(name, done, self._version)
            return StageDone(figures=done)

    @handles(SyncWeights)
    async def on_sync(self, _: SyncWeights) -> Done:
        async with self._stage_lock:
            await self._sync()
        return Done()

    @handles(NextReports)
    async def on_next_reports(self, request: NextReports) -> Reports:
        self._told = max(self._told, request.after)
        if len(self._reports) <= request.after:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.patience_s):
                    await self._news.wait()
        return Reports(reports=tuple(self._reports[request.after :]), next=len(self._reports))

    async def _begin(self, request: BeginStage) -> None:
        await self._bring_into_step()
        await self.port.ask(self._learner, request, LEARNER_DEADLINE_S)

    async def _stepped(self, position: StagePosition, version: WeightsVersion, figures: StepFigures) -> None:
        self._sampler.forget_stored()
        self._report(figures)
        await self._books.stepped(position, version)

    async def _end(self, name: str, figures: Figures) -> StageDone:
        await self.port.ask(self._learner, SaveCheckpoint(path=f"{self._checkpoints}/{name}"), LEARNER_DEADLINE_S)
        await self._books.ended(name, figures, self._version)
        return StageDone(figures=figures)

    async def _bring_into_step(self) -> None:
        """Before anything is sampled by a run that is resumed: the restored weights reach the engines."""
        if not self._in_step:
            await self._sync()

    async def _sync(self) -> WeightsVersion:
        """Bring the learner's weights to every generator, behind the gate; returns their version."""
        reached("sync")
        await self.port.ask(self._balancer, CloseGate(), DRAIN_DEADLINE_S)
        published = await self.port.ask(self._learner, PublishWeights(), LEARNER_DEADLINE_S)
        update = UpdateWeights(version=published.version, blob=published.blob)
        self._version = published.version
        await asyncio.gather(*[self._update(ref, update) for ref in self._generators])
        await self.port.blobs.drop(BlobRef(published.blob))
        await self.port.ask(self._balancer, OpenGate(version=published.version), LEARNER_DEADLINE_S)
        self._in_step = True
        return published.version

    async def _update(self, ref: ActorRef, update: UpdateWeights) -> None:
        """Bring weights to one generator; one that can't be reached is left out until it is back with them."""
        began = self.port.clock.now_ns()
        while True:
            try:
                await self.port.ask(ref, update, UPDATE_DEADLINE_S)
                return
            except ActorLost as lost:
                waited = seconds_since(self.port.clock, began)
                if waited > RETURN_S or (ref.name in self._supervision.left_out and waited > LEFT_OUT_S):
                    log.warning("%s goes without weights %s: %s", ref.name, update.version, lost)
                    await self._supervision.leave_out(ref.name)
                    return
            await self.port.clock.sleep(RETRY_S)

    def _report(self, report: StepFigures) -> None:
        self._reports.append(report)
        self._news.set()
