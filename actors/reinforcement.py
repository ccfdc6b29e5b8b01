"""One stage of GRPO-RoC: sample groups, resample them, learn, bring the weights to the generators; again.

Invariants:
- with `max_staleness = 0` the weights that sample step n are those that step n - 1 learned: the gate opens when every
  generator has them. With more, rollouts go on while the learner is at work, and `policies.group_flow` says which
  groups are begun, learned from and dropped; it is the same loop;
- each problem of the stream is posed once; where too few groups carry signal and dynamic sampling is on, further rounds
  take the next ones, and their number is bounded and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Protocol

from actors.generator_load import GeneratorLoad
from actors.group_feed import GroupFeed
from actors.learn_step import learn
from actors.messages import (
    Learned,
    RecordTrainedStep,
    RunReinforcement,
)
from actors.prepared import open_stream
from actors.run_books import Stepped
from actors.sampling import Sampled, Sampler, rollout_figures, staleness_figures
from actors.storage.trained_steps import batch_digest
from actors.supervision import patiently
from actors.system.actor import ActorRef, Port
from actors.system.clock import seconds_since
from policies.group_flow import GroupFlow
from policies.grouping import LearningBatch, StepRounds, resampling_random
from policies.move_on import read_again, reason_to_move_on
from policies.run_progress import Figures, StagePosition, StepFigures
from policies.stages import ReinforcementOptions
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

LEARNER_FIGURES = tuple(
    f"learner_{name}"
    for name in (
        "loss",
        "entropy",
        "gradient_norm",
        "clip_share",
        "ratio_max",
        "ratio_min",
        "ratio_tail_share",
        "mismatch_kl",
        "engine_mismatch_tail_share",
        "tokens_per_s",
        "peak_memory_bytes",
    )
)
"""Figures that each step has: None where nothing could be learned."""
RECORD_DEADLINE_S = 60.0


class Sync(Protocol):
    """As `DirectorActor` brings weights to the generators."""

    def __call__(self, *, in_flight: bool) -> Awaitable[WeightsVersion]: ...


class Reinforcement:
    """One stage.

    Args:
        position: where to go on; None from the beginning.
        version: the weights that learner and generators have.
        sync: brings the learner's weights to every generator, and returns their version; `in_flight` says whether
            rollouts go on meanwhile.
        stepped: told of each step.
    """

    def __init__(
        self,
        port: Port,
        request: RunReinforcement,
        *,
        sampler: Sampler,
        learner: ActorRef,
        balancer: ActorRef,
        archive: ActorRef,
        generators: list[ActorRef],
        run_seed: int,
        position: StagePosition | None,
        version: WeightsVersion,
        sync: Sync,
        stepped: Stepped,
    ) -> None:
        self._port, self._learner = port, learner
        self._archive = archive
        self._load = GeneratorLoad(port, generators, balancer)
        self._name, self._options, self._limits = request.name, request.options, request.limits
        self._version, self._sync, self._stepped = version, sync, stepped
        self._run_seed = run_seed
        options: ReinforcementOptions = self._options
        self._position = position or StagePosition(stage=self._name, steps=0, cursor=0)
        self._flow = GroupFlow(
            prompts=options.prompts,
            max_staleness=options.max_staleness,
            too_old=options.too_old,
            steps=options.steps,
            done=self._position.steps,
            cursor=self._position.cursor,
            again=self._position.under_way,
            version=version.step,
        )
        stream = open_stream(options.problems, run_seed=run_seed, held_out=False)
        self._feed = GroupFeed(sampler, stream, self._flow, stage=self._name, options=options, limits=self._limits)

    async def run(self) -> Figures:
        """All steps of the stage that are left; returns the figures of its last one."""
        figures: Figures = {}
        await self._load.begin()
        while self._position.steps < self._options.steps and not self._moves_on():
            figures = await self._step(self._position.steps)
            self._position = StagePosition(
                stage=self._name,
                steps=self._position.steps + 1,
                cursor=self._flow.cursor,
                under_way=self._flow.held,
                history=read_again(self._options.move_on, (*self._position.history, figures)),
            )
            done = StepFigures(kind="step", stage=self._name, step=self._position.steps, figures=figures)
            await self._stepped(self._position, self._version, done)
        if left := await self._feed.rest():
            log.info("stage %s: nothing was learned from %d groups that were under way at its end", self._name, left)
        return figures

    def _moves_on(self) -> bool:
        rule, position = self._options.move_on, self._position
        reason = None if rule is None else reason_to_move_on(rule, position.history, position.steps)
        if reason is not None:
            log.info("stage %s is over after step %d: %s", self._name, position.steps, reason)
        return reason is not None

    async def _step(self, step: int) -> Figures:
        options: ReinforcementOptions = self._options
        clock, start = self._port.clock, self._port.clock.now_ns()
        sampled, rounds = await self._play(step)
        rollout_s = seconds_since(clock, start)
        load = {} if options.max_staleness else await self._load.look(rollout_s)
        learn_start = clock.now_ns()
        learned = await self._learn(step, rounds.batch)
        learn_s = seconds_since(clock, learn_start)
        sync_start = clock.now_ns()
        learned_by, too_old = self._version, len(self._flow.dropped)
        self._version = await self._sync(in_flight=self._is_in_flight)
        self._flow.stepped(self._version.step)
        sync_s, total_s = seconds_since(clock, sync_start), seconds_since(clock, start)
        if options.max_staleness:  # rollouts have been under way all the time
            load = await self._load.look(None)
        idle = self._load.end_step()
        figures = rollout_figures(sampled.trajectories)
        model_tokens = figures.get("model_tokens") or 0.0
        return (
            figures
            | load
            | idle
            | learned
            | staleness_figures(sampled.trajectories, learned_by, options.max_staleness)
            | rounds.batch.figures()
            | {
                "solved_share": sum(any(t.verdict.correct for t in group) for group in sampled.groups)
                / len(sampled.groups),
                "dropped": float(len(sampled.dropped)),
                "groups_too_old": float(too_old),
                "groups_under_way": float(len(self._flow.held)),
                "refill_rounds": float(rounds.count - 1),
                "refill_groups": float(len(sampled.groups) - options.prompts),
                "tokens_per_s": model_tokens / (total_s if options.max_staleness else rollout_s),
                "step_tokens_per_s": model_tokens / total_s,
                "time_rollout_s": rollout_s,
                "time_learn_s": learn_s,
                "time_sync_s": sync_s,
                "time_total_s": total_s,
            }
        )

    @property
    def _is_in_flight(self) -> bool:
        return self._options.max_staleness > 0 and self._options.weight_update == "in_flight"

    async def _play(self, step: int) -> tuple[Sampled, StepRounds]:
        """The groups of a step, and what is learned from them; with dynamic sampling, in as many rounds as it takes."""
        played = Sampled()
        # Draws of this step alone: a run that goes on from here draws the same.
        rounds = StepRounds(self._options, resampling_random(self._run_seed, self._name, step))
        self._feed.open_step()
        while count := rounds.wanted:
            sampled = await self._feed.groups(step, count)
            played.groups += sampled.groups
            played.dropped += sampled.dropped
            rounds.add(sampled.groups)
        return played, rounds

    async def _learn(self, step: int, batch: LearningBatch) -> Figures:
        if not batch.sequences:  # no group carries signal: nothing to learn from
            return dict.fromkeys(LEARNER_FIGURES) | {"learner_skipped": 1.0}
        learned = await learn(
            self._port, self._learner, step_id=f"{self._name}/{step}", kind="reinforce", batch=batch.sequences
        )
        await self._record(step, batch, learned)
        figures: Figures = {f"learner_{name}": value for name, value in learned.metrics.items()}
        return dict.fromkeys(LEARNER_FIGURES) | figures

    async def _record(self, step: int, batch: LearningBatch, learned: Learned) -> None:
        """Enter the step into the archive's ledger, if it has changed the weights."""
        if not learned.metrics["skipped"]:
            record = RecordTrainedStep(
                stage=self._name,
                step=step,
                version=learned.version,
                groups=tuple(batch.trained),
                taken=tuple(batch.taken),
                digest=batch_digest(batch.sequences),
            )
            await patiently(self._port, self._archive, record, RECORD_DEADLINE_S)
