"""One stage of GRPO-RoC: sample groups, resample them, learn, bring the weights to the generators; again.

Invariants:
- the weights that sample step n are those that step n - 1 learned: the gate opens when every generator has them
  (staleness 0, and the figures say so);
- each problem of the stream is posed once; where too few groups carry signal and dynamic sampling is on, further rounds
  take the next ones, and their number is bounded and counted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from actors.messages import (
    DescribeBalancer,
    DescribeGenerator,
    GeneratorStatus,
    Learn,
    Learned,
    RecordTrainedStep,
    RunReinforcement,
)
from actors.prepared import open_stream
from actors.run_books import Stepped
from actors.sampling import Sampled, Sampler, rollout_figures, staleness_figures
from actors.storage.trained_steps import batch_digest
from actors.supervision import patiently
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.clock import seconds_since
from policies.grouping import LearningBatch, StepRounds, resampling_random
from policies.move_on import READ_BY_THE_RULE, reason_to_move_on
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
LEARN_DEADLINE_S = 3600.0
STATUS_DEADLINE_S = 60.0


class Reinforcement:
    """One stage.

    Args:
        position: where to go on; None from the beginning.
        sync: brings the learner's weights to every generator, and returns their version.
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
        sync: Callable[[], Awaitable[WeightsVersion]],
        stepped: Stepped,
    ) -> None:
        self._port, self._sampler, self._learner = port, sampler, learner
        self._balancer, self._archive, self._generators = balancer, archive, generators
        self._name, self._options, self._limits = request.name, request.options, request.limits
        self._sync, self._stepped = sync, stepped
        self._stream = open_stream(self._options.problems, run_seed=run_seed, held_out=False)
        self._run_seed = run_seed
        self._position = position or StagePosition(stage=self._name, steps=0, cursor=0)
        self._cursor = self._position.cursor

    async def run(self) -> Figures:
        """All steps of the stage that are left; returns the figures of its last one."""
        figures: Figures = {}
        while self._position.steps < self._options.steps and not self._moves_on():
            version, figures = await self._step(self._position.steps)
            self._position = StagePosition(
                stage=self._name,
                steps=self._position.steps + 1,
                cursor=self._cursor,
                history=(*self._position.history, {name: figures.get(name) for name in READ_BY_THE_RULE}),
            )
            done = StepFigures(kind="step", stage=self._name, step=self._position.steps, figures=figures)
            await self._stepped(self._position, version, done)
        return figures

    def _moves_on(self) -> bool:
        rule, position = self._options.move_on, self._position
        reason = None if rule is None else reason_to_move_on(rule, position.history)
        if reason is not None:
            log.info("stage %s is over after step %d: %s", self._name, position.steps, reason)
        return reason is not None

    async def _step(self, step: int) -> tuple[WeightsVersion, Figures]:
        options: ReinforcementOptions = self._options
        clock, start = self._port.clock, self._port.clock.now_ns()
        before = await self._statuses()
        sampled, rounds = await self._play(step)
        rollout_s = seconds_since(clock, start)
        load = await self._load_figures(before, rollout_s)
        learn_start = clock.now_ns()
        learned = await self._learn(step, rounds.batch)
        learn_s = seconds_since(clock, learn_start)
        sync_start = clock.now_ns()
        version = await self._sync()
        total_s = seconds_since(clock, start)
        figures = rollout_figures(sampled.trajectories)
        model_tokens = figures.get("model_tokens") or 0.0
        learned_by = version if learned["learner_skipped"] else version._replace(step=version.step - 1)
        return version, (
            figures
            | load
            | learned
            | staleness_figures(sampled.trajectories, learned_by)
            | rounds.batch.figures()
            | {
                "solved_share": sum(any(t.verdict.correct for t in group) for group in sampled.groups)
                / len(sampled.groups),
                "dropped": float(len(sampled.dropped)),
                "refill_rounds": float(rounds.count - 1),
                "refill_groups": float(len(sampled.groups) - options.prompts),
                "tokens_per_s": model_tokens / rollout_s,
                "step_tokens_per_s": model_tokens / total_s,
                "time_rollout_s": rollout_s,
                "time_learn_s": learn_s,
                "time_sync_s": seconds_since(clock, sync_start),
                "time_total_s": total_s,
            }
        )

    async def _play(self, step: int) -> tuple[Sampled, StepRounds]:
        """The groups of a step, and what is learned from them; with dynamic sampling, in as many rounds as it takes."""
        options, played = self._options, Sampled()
        # Draws of this step alone: a run that goes on from here draws the same.
        rounds = StepRounds(options, resampling_random(self._run_seed, self._name, step))
        while count := rounds.wanted:
            sampled = await self._sampler.sample(
                [self._stream.problem(self._cursor + index) for index in range(count)],
                options.sampled,
                stage=self._name,
                step=step,
                limits=self._limits,
                temperature=options.temperature,
                first_group=len(played.groups),
            )
            self._cursor += count
            played.groups += sampled.groups
            played.dropped += sampled.dropped
            rounds.add(sampled.groups)
        return played, rounds

    async def _learn(self, step: int, batch: LearningBatch) -> Figures:
        if not batch.sequences:  # no group carries signal: nothing to learn from
            return dict.fromkeys(LEARNER_FIGURES) | {"learner_skipped": 1.0}
        blob = await self._port.blobs.put(tuple(batch.sequences))
        request = Learn(step_id=f"{self._name}/{step}", kind="reinforce", blob=blob.key)
        learned = await self._port.ask(self._learner, request, LEARN_DEADLINE_S)
        await self._port.blobs.drop(blob)
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
                digest=batch_digest(batch.sequences),
            )
            await patiently(self._port, self._archive, record, STATUS_DEADLINE_S)

    async def _statuses(self) -> dict[str, GeneratorStatus]:
        """By generator; those that can't be reached are left out."""
        statuses = {}
        for ref in self._generators:
            with contextlib.suppress(ActorError):
                statuses[ref.name] = await self._port.ask(ref, DescribeGenerator(), STATUS_DEADLINE_S)
        return statuses

    async def _load_figures(self, before: dict[str, GeneratorStatus], rollout_s: float) -> Figures:
        """How busy the generators were, and how much of their KV cache was held on average, while rollouts ran."""
        figures: Figures = {}
        for name, now in (await self._statuses()).items():
            then = before.get(name)
            if then is None or then.capacity != now.capacity:
                continue  # it was gone, or was restarted, and counts anew
            kv = now.kv_token_seconds - then.kv_token_seconds
            figures[f"busy_share_{name}"] = (now.busy_seconds - then.busy_seconds) / rollout_s
            figures[f"tokens_per_s_{name}"] = (now.generated_tokens - then.generated_tokens) / rollout_s
            figures[f"peak_memory_bytes_{name}"] = float(now.peak_memory_bytes)
            figures[f"kv_used_share_{name}"] = kv / (now.capacity.kv_tokens * rollout_s)
        status = await patiently(self._port, self._balancer, DescribeBalancer(), STATUS_DEADLINE_S)
        return figures | {"peak_leases": float(status.peak_leases)}
