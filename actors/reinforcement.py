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
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from actors.messages import DescribeBalancer, DescribeGenerator, GeneratorStatus, Learn, Report, RunReinforcement
from actors.prepared import open_stream
from actors.sampling import Sampled, Sampler, rollout_figures, staleness_figures
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.clock import seconds_since
from policies.grouping import LearningBatch, add_groups, shuffled_rewards
from policies.move_on import reason_to_move_on
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory

log = logging.getLogger(__name__)

LEARN_DEADLINE_S = 3600.0
STATUS_DEADLINE_S = 60.0


@dataclass(slots=True)
class _Played:
    """The rollouts of one step, of all its rounds, and what is learned from them."""

    sampled: Sampled = field(default_factory=Sampled)
    batch: LearningBatch = field(default_factory=LearningBatch)
    rounds: int = 0


class Reinforcement:
    """One stage.

    Args:
        sync: brings the learner's weights to every generator.
        report: takes the figures of each step.
    """

    def __init__(
        self,
        port: Port,
        request: RunReinforcement,
        *,
        sampler: Sampler,
        learner: ActorRef,
        balancer: ActorRef,
        generators: list[ActorRef],
        run_seed: int,
        sync: Callable[[], Awaitable[None]],
        report: Callable[[Report], None],
    ) -> None:
        self._port, self._sampler, self._learner = port, sampler, learner
        self._balancer, self._generators = balancer, generators
        self._name, self._options, self._limits = request.name, request.options, request.limits
        self._sync, self._report = sync, report
        self._stream = open_stream(self._options.problems, run_seed=run_seed, held_out=False)
        self._rng = random.Random(f"{run_seed}/{request.name}")
        self._cursor = 0

    async def run(self) -> dict[str, float]:
        """All steps of the stage; returns the figures of its last one."""
        figures: dict[str, float] = {}
        rule, steps = self._options.move_on, []
        for step in range(self._options.steps):
            figures = await self._step(step)
            self._report(Report(kind="step", stage=self._name, step=step + 1, figures=figures))
            steps.append(figures)
            reason = None if rule is None else reason_to_move_on(rule, steps)
            if reason is not None:
                log.info("stage %s is over after step %d: %s", self._name, step + 1, reason)
                break
        return figures

    async def _step(self, step: int) -> dict[str, float]:
        options: ReinforcementOptions = self._options
        clock, start = self._port.clock, self._port.clock.now_ns()
        before = await self._statuses()
        played = await self._play(step)
        rollout_s = seconds_since(clock, start)
        load = await self._load_figures(before, rollout_s)
        learn_start = clock.now_ns()
        learned = await self._learn(step, played)
        learn_s = seconds_since(clock, learn_start)
        sync_start = clock.now_ns()
        await self._sync()
        total_s = seconds_since(clock, start)
        figures = rollout_figures(played.sampled.trajectories)
        model_tokens = figures.get("model_tokens", 0.0)
        return (
            figures
            | load
            | learned
            | played.batch.figures()
            | {
                "solved_share": sum(any(t.verdict.correct for t in group) for group in played.sampled.groups)
                / len(played.sampled.groups),
                "dropped": float(len(played.sampled.dropped)),
                "refill_rounds": float(played.rounds - 1),
                "refill_groups": float(len(played.sampled.groups) - options.prompts),
                "tokens_per_s": model_tokens / rollout_s,
                "step_tokens_per_s": model_tokens / total_s,
                "time_rollout_s": rollout_s,
                "time_learn_s": learn_s,
                "time_sync_s": seconds_since(clock, sync_start),
                "time_total_s": total_s,
            }
        )

    async def _play(self, step: int) -> _Played:
        """The groups of a step; with dynamic sampling, in as many rounds as it takes, within its bound."""
        options, refill = self._options, self._options.dynamic_sampling
        wanted = options.prompts if refill is None or refill.groups is None else refill.groups
        rounds = 1 if refill is None else 1 + refill.rounds
        played, count = _Played(), options.prompts
        while played.rounds < rounds and count > 0:
            sampled = await self._sampler.sample(
                [self._stream.problem(self._cursor + index) for index in range(count)],
                options.sampled,
                stage=self._name,
                step=step,
                limits=self._limits,
                temperature=options.temperature,
                first_group=len(played.sampled.groups),
            )
            self._cursor += count
            played.rounds += 1
            played.sampled.groups += sampled.groups
            played.sampled.dropped += sampled.dropped
            add_groups(played.batch, sampled.groups, self._rewards(sampled.trajectories), options, self._rng)
            count = wanted - played.batch.groups_with_signal
        return played

    def _rewards(self, trajectories: list[Trajectory]) -> dict[str, float]:
        if self._options.rewards == "shuffled":
            return shuffled_rewards(trajectories, self._rng)
        return {trajectory.id: trajectory.reward for trajectory in trajectories}

    async def _learn(self, step: int, played: _Played) -> dict[str, float]:
        if not played.batch.sequences:
            return {}  # no group carries signal: nothing to learn from
        blob = await self._port.blobs.put(tuple(played.batch.sequences))
        request = Learn(step_id=f"{self._name}/{step}", kind="reinforce", blob=blob.key)
        learned = await self._port.ask(self._learner, request, LEARN_DEADLINE_S)
        await self._port.blobs.drop(blob)
        updates = 0 if learned.metrics["skipped"] else 1
        before = learned.version._replace(step=learned.version.step - updates)
        figures = {f"learner_{name}": value for name, value in learned.metrics.items()}
        return figures | staleness_figures(played.sampled.trajectories, before)

    async def _statuses(self) -> dict[str, GeneratorStatus]:
        """By generator; those that can't be reached are left out."""
        statuses = {}
        for ref in self._generators:
            with contextlib.suppress(ActorError):
                statuses[ref.name] = await self._port.ask(ref, DescribeGenerator(), STATUS_DEADLINE_S)
        return statuses

    async def _load_figures(self, before: dict[str, GeneratorStatus], rollout_s: float) -> dict[str, float]:
        """How busy the generators were, and how much of their KV cache was held on average, while rollouts ran."""
        figures: dict[str, float] = {}
        for name, now in (await self._statuses()).items():
            then = before.get(name)
            if then is None or then.capacity != now.capacity:
                continue  # it was gone, or was restarted, and counts anew
            kv = now.kv_token_seconds - then.kv_token_seconds
            figures[f"busy_share_{name}"] = (now.busy_seconds - then.busy_seconds) / rollout_s
            figures[f"kv_used_share_{name}"] = kv / (now.capacity.kv_tokens * rollout_s)
        status = await self._port.ask(self._balancer, DescribeBalancer(), STATUS_DEADLINE_S)
        return figures | {"peak_leases": float(status.peak_leases)}
