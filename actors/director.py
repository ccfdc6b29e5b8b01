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
    Report,
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
from actors.sampling import Sampler
from actors.system.actor import Actor, ActorRef, BlobRef, handles
from actors.system.clock import seconds_since
from actors.system.message import Done
from actors.tokenizer import PromptOptions, load_chat_format
from policies.options import ObjectiveOptions

log = logging.getLogger(__name__)

LEARNER_DEADLINE_S = 600.0
DRAIN_DEADLINE_S = 3600.0
UPDATE_DEADLINE_S = 600.0


class DirectorActor(Actor):
    """Directs the other actors of a training run.

    Args:
        model: folder with the tokenizer, which fine-tuning needs; None in a simulation.
        checkpoints: folder that a checkpoint is written to after each stage of learning.
    """

    def __init__(
        self,
        *,
        model: str | None,
        prompt: PromptOptions,
        run_seed: int,
        learner: ActorRef,
        balancer: ActorRef,
        generators: list[ActorRef],
        environments: list[ActorRef],
        rollouts: list[ActorRef],
        checkpoints: str,
    ) -> None:
        self._model, self._prompt, self._run_seed = model, prompt, run_seed
        self._learner, self._balancer = learner, balancer
        self._generators, self._environments, self._rollouts = generators, environments, rollouts
        self._checkpoints = checkpoints
        self._reports: list[Report] = []
        self._news = asyncio.Event()
        self._stage_lock = asyncio.Lock()
        self._done: dict[str, StageDone] = {}

    async def start(self) -> None:
        self._chat = None if self._model is None else load_chat_format(self._model, self._prompt)
        self._sampler = Sampler(self.port, self._rollouts)

    @handles(RunFineTuning)
    async def on_fine_tune(self, request: RunFineTuning) -> StageDone:
        async with self._stage_lock:
            if request.name in self._done:
                return self._done[request.name]
            options = request.options
            assert self._chat is not None, "fine-tuning needs a tokenizer"
            await self._begin(
                BeginStage(optimiser=options.optimiser, objective=ObjectiveOptions(), total_steps=options.steps)
            )
            stage = FineTuning(
                self.port,
                request,
                chat=self._chat,
                learner=self._learner,
                environments=self._environments,
                run_seed=self._run_seed,
                report=self._report,
            )
            figures = await stage.run()
            await self._sync()
            return await self._end(request.name, figures)

    @handles(RunReinforcement)
    async def on_reinforce(self, request: RunReinforcement) -> StageDone:
        async with self._stage_lock:
            if request.name in self._done:
                return self._done[request.name]
            options = request.options
            await self._begin(
                BeginStage(
                    optimiser=options.optimiser,
                    objective=options.objective,
                    total_steps=options.steps,
                    temperature=options.temperature,
                )
            )
            stage = Reinforcement(
                self.port,
                request,
                sampler=self._sampler,
                learner=self._learner,
                balancer=self._balancer,
                generators=self._generators,
                run_seed=self._run_seed,
                sync=self._sync,
                report=self._report,
            )
            return await self._end(request.name, await stage.run())

    @handles(RunEvaluation)
    async def on_evaluate(self, request: RunEvaluation) -> StageDone:
        async with self._stage_lock:
            name = f"evaluation-{request.name}"
            if name not in self._done:
                start = self.port.clock.now_ns()
                figures = await evaluate(request, self._sampler)
                figures["time_total_s"] = seconds_since(self.port.clock, start)
                self._report(Report(kind="evaluation", stage=request.name, step=0, figures=figures))
                self._done[name] = StageDone(figures=figures)
            return self._done[name]

    @handles(SyncWeights)
    async def on_sync(self, _: SyncWeights) -> Done:
        async with self._stage_lock:
            await self._sync()
        return Done()

    @handles(NextReports)
    async def on_next_reports(self, request: NextReports) -> Reports:
        if len(self._reports) <= request.after:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.patience_s):
                    await self._news.wait()
        return Reports(reports=tuple(self._reports[request.after :]), next=len(self._reports))

    async def _begin(self, request: BeginStage) -> None:
        await self.port.ask(self._learner, request, LEARNER_DEADLINE_S)

    async def _end(self, name: str, figures: dict[str, float]) -> StageDone:
        await self.port.ask(self._learner, SaveCheckpoint(path=f"{self._checkpoints}/{name}"), LEARNER_DEADLINE_S)
        self._done[name] = StageDone(figures=figures)
        return self._done[name]

    async def _sync(self) -> None:
        """Bring the learner's weights to every generator, behind the gate."""
        await self.port.ask(self._balancer, CloseGate(), DRAIN_DEADLINE_S)
        published = await self.port.ask(self._learner, PublishWeights(), LEARNER_DEADLINE_S)
        update = UpdateWeights(version=published.version, blob=published.blob)
        await asyncio.gather(*[self.port.ask(ref, update, UPDATE_DEADLINE_S) for ref in self._generators])
        await self.port.blobs.drop(BlobRef(published.blob))
        await self.port.ask(self._balancer, OpenGate(version=published.version), LEARNER_DEADLINE_S)

    def _report(self, report: Report) -> None:
        self._reports.append(report)
        self._news.set()
