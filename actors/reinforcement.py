"""One stage of GRPO-RoC: sample groups, resample them, learn, bring the weights to the generators; again.

Invariant: the weights that sample step n are those that step n - 1 learned: the gate opens when every generator
has them (staleness 0).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable

from actors.messages import DescribeBalancer, DescribeGenerator, GeneratorStatus, Learn, Report, RunReinforcement
from actors.sampling import Sampled, Sampler, rollout_figures
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.clock import seconds_since
from policies.curriculum import ProblemStream
from policies.grouping import LearningBatch, learning_batch, shuffled_rewards
from policies.stages import ReinforcementOptions

LEARN_DEADLINE_S = 3600.0
STATUS_DEADLINE_S = 60.0


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
        self._stream = ProblemStream(self._options.problems, run_seed=run_seed, held_out=False)
        self._rng = random.Random(f"{run_seed}/{request.name}")
        self._cursor = 0

    async def run(self) -> dict[str, float]:
        """All steps of the stage; returns the figures of its last one."""
        figures: dict[str, float] = {}
        for step in range(self._options.steps):
            figures = await self._step(step)
            self._report(Report(kind="step", stage=self._name, step=step + 1, figures=figures))
        return figures

    async def _step(self, step: int) -> dict[str, float]:
        options: ReinforcementOptions = self._options
        clock, start = self._port.clock, self._port.clock.now_ns()
        problems = [self._stream.problem(self._cursor + index) for index in range(options.prompts)]
        self._cursor += options.prompts
        before = await self._statuses()
        sampled = await self._sampler.sample(
            problems,
            options.sampled,
            stage=self._name,
            step=step,
            limits=self._limits,
            temperature=options.temperature,
        )
        rollout_s = seconds_since(clock, start)
        load = await self._load_figures(before, rollout_s)
        batch = self._batch(sampled)
        learn_start = clock.now_ns()
        learned = await self._learn(step, batch)
        learn_s = seconds_since(clock, learn_start)
        sync_start = clock.now_ns()
        await self._sync()
        total_s = seconds_since(clock, start)
        figures = rollout_figures(sampled.trajectories)
        return (
            figures
            | load
            | learned
            | {
                "solved_share": sum(any(t.verdict.correct for t in group) for group in sampled.groups) / len(problems),
                "dropped": float(len(sampled.dropped)),
                "groups": float(batch.groups),
                "groups_with_signal": float(batch.groups_with_signal),
                "kept_rollouts": float(batch.kept),
                "learned_rollouts": float(len(batch.sequences)),
                "tokens_per_s": figures.get("model_tokens", 0.0) / rollout_s,
                "time_rollout_s": rollout_s,
                "time_learn_s": learn_s,
                "time_sync_s": seconds_since(clock, sync_start),
                "time_total_s": total_s,
            }
        )

    def _batch(self, sampled: Sampled) -> LearningBatch:
        trajectories = sampled.trajectories
        rewards = {trajectory.id: trajectory.reward for trajectory in trajectories}
        if self._options.rewards == "shuffled":
            rewards = shuffled_rewards(trajectories, self._rng)
        return learning_batch(sampled.groups, rewards, self._options.group, self._options.resampling, self._rng)

    async def _learn(self, step: int, batch: LearningBatch) -> dict[str, float]:
        if not batch.sequences:
            return {}  # no group carries signal: nothing to learn from
        blob = await self._port.blobs.put(tuple(batch.sequences))
        request = Learn(step_id=f"{self._name}/{step}", kind="reinforce", blob=blob.key)
        learned = await self._port.ask(self._learner, request, LEARN_DEADLINE_S)
        await self._port.blobs.drop(blob)
        return {f"learner_{name}": value for name, value in learned.metrics.items()}

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
