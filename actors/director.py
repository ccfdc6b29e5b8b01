"""The director: runs stages on the other actors when it is told to, and reports as it goes.

Invariants:
- one stage at a time; a stage asked for again (after a resend) is not run twice;
- weights reach every generator behind the balancer's gate (closed, drained, updated, opened), or, where a stage asks
  for it, between two steps of engines that are at work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from actors.evaluation import evaluate
from actors.fine_tuning import FineTuning
from actors.messages import (
    BeginStage,
    CloseGate,
    DescribeRun,
    NextReports,
    OpenGate,
    PublishWeights,
    Reports,
    RunEvaluation,
    RunFineTuning,
    RunReinforcement,
    RunView,
    SaveCheckpoint,
    StageDone,
    SyncWeights,
    UpdateWeights,
)
from actors.reinforcement import Reinforcement
from actors.rewinding import LearnerGuard, LearnerLost, Rewinding, RunStuck
from actors.run_books import CheckpointPlan, RunBooks
from actors.sampling import Sampler, Seating, StoredSteps
from actors.supervision import Supervision, patiently
from actors.system.actor import Actor, ActorLost, ActorRef, BlobRef, CannotGoOn, DeadlineExceeded, handles
from actors.system.clock import seconds_since
from actors.system.kill_point import reached
from actors.system.message import Done
from actors.tokenizer import PromptOptions, load_chat_format
from policies.options import ObjectiveOptions
from policies.run_progress import NOTHING_DONE, Figures, Report, Rewound, RunProgress, StagePosition, StepFigures
from policies.trajectory import UNTRAINED, WeightsVersion
from policies.untold import UntoldReports

log = logging.getLogger(__name__)

LEARNER_DEADLINE_S = 600.0
DRAIN_DEADLINE_S = 3600.0
UPDATE_DEADLINE_S = 600.0
RETRY_S = 2.0
RETURN_S = 180.0
"""How long weights wait for a generator that was lost: it may be restarting."""
LEFT_OUT_S = 20.0
"""How long for one that is known to be gone, the first time."""


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
        self._reports = UntoldReports(progress.untold)
        self._news = asyncio.Event()
        self._stage_lock = asyncio.Lock()
        self._in_step = progress.version == UNTRAINED
        """Whether generators have the learner's weights; those of a run that is resumed begin with others."""
        self._version = progress.version
        self._missed: dict[str, None] = {}
        """Generators that were waited for in vain when weights last went out: they are not waited for again."""
        self._gate_open = True

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
            untold=self._reports.figures,
        )
        self._guard = LearnerGuard(self.port, self._learner)
        self._rewinding = Rewinding(
            self.port,
            learner=self._learner,
            archive=self._archive,
            rollouts=self._rollouts,
            plan=self._plan,
            beginning=self._progress,
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
        return await self._as_long_as_it_takes(request.name, lambda: self._fine_tune(request))

    @handles(RunReinforcement)
    async def on_reinforce(self, request: RunReinforcement) -> StageDone:
        return await self._as_long_as_it_takes(request.name, lambda: self._reinforce(request))

    @handles(RunEvaluation)
    async def on_evaluate(self, request: RunEvaluation) -> StageDone:
        return await self._as_long_as_it_takes(f"evaluation-{request.name}", lambda: self._evaluate(request))

    async def _as_long_as_it_takes(self, name: str, work: Callable[[], Coroutine[Any, Any, Figures]]) -> StageDone:
        """Do what is not done yet; when the learner dies meanwhile, from the newest checkpoint on."""
        async with self._stage_lock:
            while (done := self._books.done(name)) is None:
                try:
                    done = await self._guard.while_it_lives(work())
                    break
                except LearnerLost as lost:
                    await self._go_back(str(lost))
                except DeadlineExceeded as late:
                    raise CannotGoOn(f"{late}: it hangs; its log may say why") from late
            return StageDone(figures=done)

    async def _go_back(self, why: str) -> None:
        done = self._books.all_done()
        self._in_step = False
        restored, incarnation = await self._rewinding.go_back(why, self._books.reached(), self._books.place())
        progress = restored.progress
        if missing := [name for name in done if name not in progress.done]:
            raise RunStuck(f"the newest whole checkpoint is from before the end of {missing[-1]}; resume the run")
        self._books.go_back_to(progress)
        self._report(Rewound(progress=progress, place=restored.place, why=why), *progress.untold)
        self._version = progress.version
        names = restored.earlier_names
        self._sampler.use_stored(StoredSteps(self.port, self._archive, names) if names else None)
        self._guard.renew(incarnation)

    async def _fine_tune(self, request: RunFineTuning) -> Figures:
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

    async def _reinforce(self, request: RunReinforcement) -> Figures:
        options = request.options
        position = self._books.position(request.name)
        if options.max_staleness:
            self._sampler.forget_stored()  # groups under way are begun again as a whole
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
            version=self._version,
            sync=self._sync,
            stepped=self._stepped,
        )
        return await self._end(request.name, await stage.run())

    async def _evaluate(self, request: RunEvaluation) -> Figures:
        await self._bring_into_step()
        start = self.port.clock.now_ns()
        figures = await evaluate(request, self._sampler)
        figures["time_total_s"] = seconds_since(self.port.clock, start)
        self._report(StepFigures(kind="evaluation", stage=request.name, step=0, figures=figures))
        await self._books.ended(f"evaluation-{request.name}", figures, self._version)
        return figures

    @handles(SyncWeights)
    async def on_sync(self, _: SyncWeights) -> Done:
        async with self._stage_lock:
            await self._sync()
        return Done()

    @handles(DescribeRun)
    async def on_describe(self, _: DescribeRun) -> RunView:
        allowed = [ref.name for ref in self._generators if ref.name not in self._supervision.left_out]
        return RunView(gate_open=self._gate_open, generators=tuple(allowed))

    @handles(NextReports)
    async def on_next_reports(self, request: NextReports) -> Reports:
        self._reports.were_fetched(below=request.after)
        if self._reports.next <= request.after:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.patience_s):
                    await self._news.wait()
        return Reports(reports=self._reports.since(request.after), next=self._reports.next)

    async def _begin(self, request: BeginStage) -> None:
        await self._bring_into_step()
        await self.port.ask(self._learner, request, LEARNER_DEADLINE_S, unless_at_work=True)

    async def _stepped(self, position: StagePosition, version: WeightsVersion, figures: StepFigures) -> None:
        self._sampler.forget_stored()
        self._report(figures)
        await self._books.stepped(position, version)

    async def _end(self, name: str, figures: Figures) -> Figures:
        save = SaveCheckpoint(path=f"{self._checkpoints}/{name}")
        await self.port.ask(self._learner, save, LEARNER_DEADLINE_S, unless_at_work=True)
        await self._books.ended(name, figures, self._version)
        return figures

    async def _bring_into_step(self) -> None:
        """Before anything is sampled by a run that is resumed: the restored weights reach the engines."""
        if not self._in_step:
            await self._sync()

    async def _sync(self, *, in_flight: bool = False) -> WeightsVersion:
        """Bring the learner's weights to every generator; returns their version.

        Args:
            in_flight: whether rollouts go on meanwhile; else it is done behind the gate.
        """
        reached("sync")
        if not in_flight:
            self._gate_open = False
            await patiently(self.port, self._balancer, CloseGate(), DRAIN_DEADLINE_S)
        publish = PublishWeights(asker=self.port.name)
        published = await self.port.ask(self._learner, publish, LEARNER_DEADLINE_S, unless_at_work=True)
        update = UpdateWeights(version=published.version, blob=published.blob)
        self._version = published.version
        await asyncio.gather(*[self._update(ref, update) for ref in self._generators])
        await self.port.blobs.drop(BlobRef(published.blob))
        self._gate_open = True
        await patiently(self.port, self._balancer, OpenGate(version=published.version))
        self._in_step = True
        return published.version

    async def _update(self, ref: ActorRef, update: UpdateWeights) -> None:
        """Bring weights to one generator; one that can't be reached is left out until it is back with them."""
        began = self.port.clock.now_ns()
        missed = ref.name in self._missed
        while True:
            try:
                await self.port.ask(ref, update, UPDATE_DEADLINE_S, unless_at_work=True)
                self._missed.pop(ref.name, None)
                return
            except ActorLost as lost:
                waited = seconds_since(self.port.clock, began)
                known = ref.name in self._supervision.left_out
                if waited > RETURN_S or (known and (missed or waited > LEFT_OUT_S)):
                    self._missed[ref.name] = None
                    log.warning("%s goes without weights %s: %s", ref.name, update.version, lost)
                    await self._supervision.leave_out(ref.name)
                    return
            await self.port.clock.sleep(RETRY_S)

    def _report(self, *reports: Report) -> None:
        self._reports.add(*reports)
        self._news.set()
