"""Plays groups of rollouts on the rollout actors, and counts what came of them.

Invariant: every rollout that was asked for is accounted for: finished, or dropped with a reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.messages import DescribeGenerator, FindRollouts, LeaveWave, ReadRollout, RunRollout
from actors.supervision import RETURN_S, insist, patiently
from actors.system.actor import ActorError, ActorLost, ActorRef, CannotGoOn, Port, last_line
from actors.system.clock import seconds_since
from env.image import Image
from policies.attempts import Attempts
from policies.dialogue import DialogueLimits
from policies.run_progress import Figures
from policies.trajectory import Problem, Trajectory, WeightsVersion, version_runs
from policies.void_rollouts import reason_to_stop, too_many
from policies.waves import Seat, deal

log = logging.getLogger(__name__)

ROLLOUT_DEADLINE_S = 7200.0
STORED_DEADLINE_S = 120.0
TRIES = 3
"""A rollout is set aside when so many actors have failed it, or died while they played it."""


class SandboxBroken(CannotGoOn):
    """The sandbox fails whatever is run in it."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}. `greenroom train RECIPE --dry-run` tries the sandbox; `{Image().remedy}` makes its image"
        )


@dataclass(slots=True)
class Sampled:
    """The rollouts of one step."""

    groups: list[list[Trajectory]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """`rollout: reason` for each rollout that could not be finished."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]


class StoredSteps:
    """Rollouts of a run's past that count: those that were sampled by the weights that were restored.

    Args:
        versions: all names of these weights.
    """

    def __init__(self, port: Port, archive: ActorRef, versions: tuple[WeightsVersion, ...]) -> None:
        self._port, self._archive, self._versions = port, archive, versions

    async def rollouts(self, requests: Sequence[RunRollout]) -> dict[str, Trajectory]:
        """By id, what is stored of these requests, which are of one step; none that answers another problem."""
        if not requests:
            return {}
        of = FindRollouts(stage=requests[0].stage, step=requests[0].step, versions=self._versions)
        for attempt in range(TRIES):
            found = dict.fromkeys((await patiently(self._port, self._archive, of, STORED_DEADLINE_S)).ids)
            wanted = [request for request in requests if request.id in found]
            try:
                answers = await asyncio.gather(
                    *[
                        self._port.ask(self._archive, ReadRollout(id=each.id), STORED_DEADLINE_S, unless_at_work=True)
                        for each in wanted
                    ]
                )
                break
            except ActorError as error:  # it was started again in between, and has found nothing
                log.warning("the archive does not give what it has found: %s", error)
                if attempt == TRIES - 1:
                    raise
        known = {
            request.id: answer.trajectory
            for request, answer in zip(wanted, answers, strict=True)
            if answer.trajectory.problem == request.problem
        }
        if known:
            log.info("%d of %d rollouts of %s/%d are stored already", len(known), len(requests), of.stage, of.step)
        return known


class Seating:
    """Deals out seats by what the generators can hold."""

    def __init__(self, port: Port, generators: Sequence[ActorRef], headroom: float) -> None:
        self._port, self._generators, self._headroom = port, list(generators), headroom

    async def waves(self, name: str, rollouts: int, max_tokens: int) -> list[list[Seat]]:
        """As `policies.waves.deal`. Raises `ActorError` if a generator does not answer."""
        capacities = [
            (await self._port.ask(ref, DescribeGenerator(), STORED_DEADLINE_S)).capacity for ref in self._generators
        ]
        return deal(name, rollouts, max_tokens, capacities, self._headroom)


class Sampler:
    """Asks rollout actors to play rollouts, in turn.

    Args:
        seating: in a deterministic run, deals out the seats of waves, which are played one after another.
        stored: in a run that goes on from a checkpoint, what of the next step is in the archive already.
    """

    def __init__(
        self,
        port: Port,
        rollouts: Sequence[ActorRef],
        seating: Seating | None = None,
        stored: StoredSteps | None = None,
    ) -> None:
        self._port, self._rollouts = port, list(rollouts)
        self._seating, self._stored = seating, stored
        self._turn = 0

    def use_stored(self, stored: StoredSteps | None) -> None:
        """Weights were restored: what they sampled of the next step need not be played again."""
        self._stored = stored

    def forget_stored(self) -> None:
        """The weights have moved on: what is stored was sampled by others."""
        self._stored = None

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

        Raises `SandboxBroken`, and `CannotGoOn` where what was played can't be stored or most rollouts fail everywhere.

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
        outcomes = await self._outcomes([request for group in requests for request in group], first_group)
        if reason := reason_to_stop([outcome for outcome in outcomes if isinstance(outcome, Trajectory)]):
            raise SandboxBroken(reason)
        failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if too_many(len(failed), len(outcomes)):
            raise CannotGoOn(
                f"{len(failed)} of {len(outcomes)} rollouts failed on every actor that had them; the last one: "
                f"{last_line(failed[-1])}. See the logs of rollout actors, generators and environments"
            )
        sampled, position = Sampled(), 0
        for group in requests:
            played, position = outcomes[position : position + len(group)], position + len(group)
            sampled.groups.append([outcome for outcome in played if isinstance(outcome, Trajectory)])
            sampled.dropped += [outcome for outcome in played if isinstance(outcome, str)]
        return sampled

    async def _outcomes(self, requests: list[RunRollout], first_group: int) -> list[Trajectory | str]:
        if self._seating is None or not requests:
            stored = await self._stored.rollouts(requests) if self._stored is not None else {}
            return list(await asyncio.gather(*[self._play(request, stored.get(request.id)) for request in requests]))
        first, outcomes = requests[0], list[Trajectory | str]()
        name = f"{first.stage}/{first.step}/{first_group}"
        for wave in await self._seating.waves(name, len(requests), first.limits.max_tokens):
            members = requests[len(outcomes) : len(outcomes) + len(wave)]
            seated = [request.model_copy(update={"seat": seat}) for request, seat in zip(members, wave, strict=True)]
            outcomes += await asyncio.gather(*[self._play(request) for request in seated])
        return outcomes

    async def _play(self, request: RunRollout, stored: Trajectory | None = None) -> Trajectory | str:
        if stored is not None:
            return stored
        attempts, pause_s = Attempts(TRIES, RETURN_S), 0.0
        reason = ""
        while pause_s is not None:
            await self._port.clock.sleep(pause_s)
            self._turn += 1
            where = self._rollouts[self._turn % len(self._rollouts)]
            asked_ns = self._port.clock.now_ns()
            try:
                return (await self._port.ask(where, request, ROLLOUT_DEADLINE_S, unless_at_work=True)).trajectory
            except CannotGoOn:  # no fault of the rollout's: the archive can't be written to, say
                raise
            except ActorError as error:
                reason = f"{type(error).__name__}: {error}"
                log.warning("rollout %s on %s: %s", request.id, where.name, reason)
                held_s = seconds_since(self._port.clock, asked_ns)
                # What an actor says of it is a failure, however soon it is said.
                held_s = held_s if isinstance(error, ActorLost) else math.inf
                pause_s = attempts.pause_after_failure(self._port.clock.now_ns() / 1e9, held_s)
        log.error(
            "rollout %s is set aside: %d actors have failed it; the last: %s", request.id, attempts.strikes, reason
        )
        if request.seat is not None:
            log.error("rollout %s was given up: this run is no longer deterministic", request.id)
            await insist(self._port, ActorRef(request.seat.generator), LeaveWave(seat=request.seat))
        return f"{request.id}: {reason}"


def rollout_figures(trajectories: Sequence[Trajectory]) -> Figures:
    """What is counted of a set of rollouts (void ones left out); shares are between 0 and 1.

    `tool_call_rate` is the share with a call that could be run, `format_rate` that with an answer where it belongs.
    """
    valid = [trajectory for trajectory in trajectories if trajectory.finish != "sandbox_failure"]
    if not valid:
        return {"rollouts": 0.0, "void": float(len(trajectories))}
    correct = [trajectory for trajectory in valid if trajectory.verdict.correct]
    response_tokens = [trajectory.response_tokens for trajectory in valid]
    figures: Figures = {
        "rollouts": float(len(valid)),
        "void": float(len(trajectories) - len(valid)),
        "reward_mean": _mean([trajectory.reward for trajectory in valid]),
        "response_tokens_mean": _mean(response_tokens),
        "response_tokens_p95": float(np.percentile(response_tokens, 95)),
        "response_tokens_max": float(max(response_tokens)),
        "model_tokens": float(sum(trajectory.model_tokens for trajectory in valid)),
        "turns_mean": _mean([trajectory.turns for trajectory in valid]),
        "tool_calls_mean": _mean([len(trajectory.calls) for trajectory in valid]),
        "tool_call_rate": _mean([any(call.result.status != "invalid_call" for call in t.calls) for t in valid]),
        "format_rate": _mean([t.finish == "answered" and t.verdict.reason != "no_answer" for t in valid]),
        "tool_error_share": tool_error_share(valid),
        "tool_error_share_in_correct": tool_error_share(correct),
        "duplicate_call_share": duplicate_call_share(valid),
        "calls_timed_out": float(
            sum(record.result.status == "timeout" for trajectory in valid for record in trajectory.calls)
        ),
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


def tool_error_share(trajectories: Sequence[Trajectory]) -> float | None:
    """Tool calls that failed, as a share of all tool calls of these trajectories; None if there are none."""
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return sum(trajectory.tool_errors for trajectory in trajectories) / calls if calls else None


def duplicate_call_share(trajectories: Sequence[Trajectory]) -> float:
    """Tool calls that repeat an earlier one of their rollout, as a share of all; 0 if there are none."""
    calls = sum(len(trajectory.calls) for trajectory in trajectories)
    return sum(trajectory.duplicate_calls for trajectory in trajectories) / calls if calls else 0.0


def staleness_figures(trajectories: Sequence[Trajectory], learner: WeightsVersion, most: int) -> Figures:
    """How many optimiser steps the weights that sampled a token were behind those that learn from it.

    Args:
        learner: the version before the step. Tokens of an earlier lineage count by their step, too.
        most: steps that they may be behind.

    Beside mean and maximum, a histogram: `staleness_tokens_K` is how many tokens were K steps behind, 0 to `most`. And
    `several_versions_share`: the share of rollouts that more than one version has sampled.
    """
    behind = Counter[int]()
    for trajectory in trajectories:
        for version, count in version_runs(trajectory.spans):
            behind[learner.step - version.step] += count
    if not behind.total():
        return {"staleness_mean": None, "staleness_max": None, "several_versions_share": None}
    figures: Figures = {
        "staleness_mean": sum(steps * count for steps, count in behind.items()) / behind.total(),
        "staleness_max": float(max(behind)),
        "several_versions_share": _mean([len(trajectory.versions) > 1 for trajectory in trajectories]),
    }
    return figures | {f"staleness_tokens_{steps}": float(behind[steps]) for steps in range(most + 1)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
