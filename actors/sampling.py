"""Plays groups of rollouts on the rollout actors, and counts what came of them.

Invariant: every rollout that was asked for is accounted for: finished, or dropped with a reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.messages import RunRollout
from actors.system.actor import ActorError, ActorRef, Port
from policies import tokens
from policies.dialogue import DialogueLimits
from policies.trajectory import Problem, Trajectory, WeightsVersion

log = logging.getLogger(__name__)

ROLLOUT_DEADLINE_S = 7200.0
RETRY_S = 5.0
TRIES = 3
"""How often a rollout is tried again, on another actor, after the one that played it died or failed."""


@dataclass(slots=True)
class Sampled:
    """The rollouts of one step."""

    groups: list[list[Trajectory]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """`rollout: reason` for each rollout that could not be finished."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]


class Sampler:
    """Asks rollout actors to play rollouts, in turn; keeps no state but whose turn it is."""

    def __init__(self, port: Port, rollouts: Sequence[ActorRef]) -> None:
        self._port, self._rollouts = port, list(rollouts)
        self._turn = 0

    async def sample(
        self,
        problems: Sequence[Problem],
        samples: int,
        *,
        stage: str,
        step: int,
        limits: DialogueLimits,
        temperature: float,
        first_group: int = 0,
    ) -> Sampled:
        """`samples` rollouts of each problem, side by side; answered when all are through.

        Args:
            first_group: number of the first problem's group within the step: no two of a step may be the same.
        """
        requests = [
            [
                RunRollout(
                    id=f"{stage}/{step}/{index}/{sample}",
                    group=f"{stage}/{step}/{index}",
                    sample=sample,
                    stage=stage,
                    step=step,
                    problem=problem,
                    limits=limits,
                    temperature=temperature,
                )
                for sample in range(samples)
            ]
            for index, problem in enumerate(problems, first_group)
        ]
        outcomes = await asyncio.gather(*[self._play(request) for group in requests for request in group])
        sampled, position = Sampled(), 0
        for group in requests:
            played, position = outcomes[position : position + len(group)], position + len(group)
            sampled.groups.append([outcome for outcome in played if isinstance(outcome, Trajectory)])
            sampled.dropped += [outcome for outcome in played if isinstance(outcome, str)]
        return sampled

    async def _play(self, request: RunRollout) -> Trajectory | str:
        reason = ""
        for _ in range(TRIES):
            self._turn += 1
            where = self._rollouts[self._turn % len(self._rollouts)]
            try:
                return (await self._port.ask(where, request, ROLLOUT_DEADLINE_S)).trajectory
            except ActorError as error:
                reason = f"{type(error).__name__}: {error}"
                log.warning("rollout %s on %s: %s", request.id, where.name, reason)
                await self._port.clock.sleep(RETRY_S)  # whoever was lost may be restarting
        return f"{request.id}: {reason}"


def rollout_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What is counted of a set of rollouts (void ones left out); shares are between 0 and 1."""
    valid = [trajectory for trajectory in trajectories if trajectory.finish != "sandbox_failure"]
    if not valid:
        return {"rollouts": 0.0, "void": float(len(trajectories))}
    correct = [trajectory for trajectory in valid if trajectory.verdict.correct]
    response_tokens = [trajectory.response_tokens for trajectory in valid]
    figures = {
        "rollouts": float(len(valid)),
        "void": float(len(trajectories) - len(valid)),
        "reward_mean": _mean([trajectory.reward for trajectory in valid]),
        "response_tokens_mean": _mean(response_tokens),
        "response_tokens_p95": float(np.percentile(response_tokens, 95)),
        "response_tokens_max": float(max(response_tokens)),
        "model_tokens": float(sum(trajectory.model_tokens for trajectory in valid)),
        "turns_mean": _mean([trajectory.turns for trajectory in valid]),
        "tool_calls_mean": _mean([len(trajectory.calls) for trajectory in valid]),
        "tool_error_share": tool_error_share(valid),
        "tool_error_share_in_correct": tool_error_share(correct),
        "duplicate_call_share": duplicate_call_share(valid),
        "void_turn_share": _mean([trajectory.has_void_turn for trajectory in valid]),
        "truncated_share": _mean([trajectory.truncated for trajectory in valid]),
        "no_answer_share": _mean([trajectory.verdict.reason == "no_answer" for trajectory in valid]),
        "queued_share": _mean([trajectory.queued for trajectory in valid]),
        "lease_wait_mean_s": _mean([trajectory.waited_seconds for trajectory in valid]),
    }
    turns = Counter[str]()
    for trajectory in valid:
        turns[trajectory.generator] += trajectory.turns
    return figures | {f"turns_{name}": float(count) for name, count in sorted(turns.items())}


def tool_error_share(trajectories: Sequence[Trajectory]) -> float:
    """Tool calls that failed, as a share of all tool calls of these trajectories; 0 if there are none."""
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return sum(trajectory.tool_errors for trajectory in trajectories) / calls if calls else 0.0


def duplicate_call_share(trajectories: Sequence[Trajectory]) -> float:
    """Tool calls that repeat an earlier one of their rollout, as a share of all; 0 if there are none."""
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return sum(trajectory.duplicate_calls for trajectory in trajectories) / calls if calls else 0.0


def staleness_figures(trajectories: Sequence[Trajectory], learner: WeightsVersion) -> dict[str, float]:
    """How many optimiser steps the weights that sampled a token were behind those that learn from it.

    Args:
        learner: the version before the step. Tokens of an earlier lineage count by their step, too.
    """
    behind, sampled = [], []
    for trajectory in trajectories:
        for span in trajectory.spans:
            if span.version is not None:
                behind.append(learner.step - span.version.step)
                sampled.append(tokens.count(span.ids))
    if not sum(sampled):
        return {}
    return {"staleness_mean": float(np.average(behind, weights=sampled)), "staleness_max": float(max(behind))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
