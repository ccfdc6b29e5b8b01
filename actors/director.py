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
from actors.supervision import Supervision
from actors.system.actor import Actor, ActorLost, ActorRef, BlobRef, handles
from actors.system.clock import seconds_since
from actors.system.message import Done
from actors.tokenizer import PromptOptions, load_chat_format
from policies.options import ObjectiveOptions
from policies.trajectory import WeightsVersion

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
        self._version = WeightsVersion(0, 0)

    async def start(self) -> None:
        self._chat = None if self._model is None else load_chat_format(self._model, self._prompt)
        self._sampler = Sampler(self.port, self._rollouts)
        self._supervision = Supervision(
            self.port, self._balancer, self._generators, self._rollouts, lambda: self._version
        )

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
        self._version = published.version
        await asyncio.gather(*[self._update(ref, update) for ref in self._generators])
        await self.port.blobs.drop(BlobRef(published.blob))
        await self.port.ask(self._balancer, OpenGate(version=published.version), LEARNER_DEADLINE_S)

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

    def _report(self, report: Report) -> None:
        self._reports.append(report)
        self._news.set()
