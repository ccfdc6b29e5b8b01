"""Questions to an archive: how do correct and wrong trajectories differ, what fails, where does the model hesitate?

Invariants:
- every share comes with the counts that it is made of, every kind with the id of an example;
- nothing is called entropy that is not: archives hold the log-probability of the sampled token alone, not the
  distribution. `surprisal` is -log p of what was sampled, in nats. Its mean over all tokens sampled *at a kind of
  position* is an unbiased estimate of the mean entropy there; its mean over occurrences of one token is not.

A *forking token* is one that was sampled although the model gave less than half of the probability to it: it was
likelier to say something else than this. (rStar2-Agent, arXiv 2508.20722, looks at high-entropy tokens: forks in the
reasoning, and reflection on what a tool said.)
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable

from pydantic import BaseModel

from orchestration.archive.source import Decode
from orchestration.archive.transcript import Step, Token, transcript
from policies.trajectory import CallRecord, Trajectory

FORK_LOGPROB = math.log(0.5)
"""A sampled token below this log-probability is a forking token."""
OPENING_TOKENS = 8
"""How many tokens after a tool's response count as the reaction to it."""
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))\b", re.MULTILINE)
_CONTEXT = 40
"""Characters shown before and after an example."""


class Calls(BaseModel):
    """Tool calls and how they ended."""

    trajectories: int = 0
    calls: int = 0
    failed: int = 0
    turns: int = 0
    tokens: int = 0
    """After the prompt."""

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.calls if self.calls else None

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self.calls += len(trajectory.calls)
        self.failed += trajectory.tool_errors
        self.turns += trajectory.turns
        self.tokens += trajectory.response_tokens


class StepFigures(BaseModel):
    """One step of a stage, or a whole stage (`step` is None)."""

    stage: str
    step: int | None
    correct: Calls = Calls()
    wrong: Calls = Calls()


class ErrorKind(BaseModel):
    """Calls that failed in one way."""

    status: str
    kind: str
    """The exception's name for `error`, what was wrong with the call for `invalid_call`, else empty."""
    in_correct: int = 0
    """In correct trajectories."""
    in_wrong: int = 0
    by_stage: dict[str, int] = {}
    example: str = ""
    """Id of a trajectory."""
    text: str = ""
    """What its call got back, the last line."""


class Position(BaseModel):
    """Model tokens at one kind of position."""

    where: str
    tokens: int = 0
    forks: int = 0
    surprisal_total: float = 0.0

    @property
    def surprisal_mean(self) -> float | None:
        """Nats a token: an estimate of the mean entropy there."""
        return self.surprisal_total / self.tokens if self.tokens else None


class ForkingToken(BaseModel):
    """A token as it was sampled against the odds."""

    id: int
    token: str
    occurrences: int = 0
    """In model turns, however likely."""
    forks: int = 0
    after_tool: int = 0
    """Forks among the first `OPENING_TOKENS` after a tool's response: reflection on it."""
    fork_surprisal_mean: float = 0.0
    """Over the forks, nats."""
    example: str = ""
    """Id of the trajectory with the most surprising one."""
    text: str = ""
    """Around that one."""


class Analysis(BaseModel):
    """What `analyse` found."""

    trajectories: int
    steps: list[StepFigures]
    stages: list[StepFigures]
    errors: list[ErrorKind]
    """The most frequent first."""
    calls_per_turn: dict[str, dict[int, int]]
    """Stage -> number of calls in a model turn -> number of such turns."""
    positions: list[Position]
    forking_tokens: list[ForkingToken]
    """Those that fork most often first."""


class Analyst:
    """Takes in trajectories one by one, so that an archive of any size can be asked.

    Example:
        analyst = Analyst(decode)
        for trajectory in archive.trajectories():
            analyst.add(trajectory)
        analysis = analyst.result(top=20)
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._count = 0
        self._steps: dict[tuple[str, int], StepFigures] = {}
        self._stages: dict[str, StepFigures] = {}
        self._errors: dict[tuple[str, str], ErrorKind] = {}
        self._calls_per_turn: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._positions = {where: Position(where=where) for where in _POSITIONS}
        self._forks: dict[int, ForkingToken] = {}
        self._most_surprising: defaultdict[int, float] = defaultdict(float)

    def add(self, trajectory: Trajectory) -> None:
        """Take in a trajectory."""
        self._count += 1
        correct, stage = trajectory.verdict.correct, trajectory.stage
        for figures in (
            self._steps.setdefault((stage, trajectory.step), StepFigures(stage=stage, step=trajectory.step)),
            self._stages.setdefault(stage, StepFigures(stage=stage, step=None)),
        ):
            (figures.correct if correct else figures.wrong).add(trajectory)
        for record in trajectory.calls:
            if record.result.is_tool_error:
                self._add_error(record, trajectory)
        steps = transcript(trajectory, self._decode)
        reacts_to = "first turn"
        for step in steps:
            if step.kind == "model":
                self._calls_per_turn[stage][len(step.calls)] += 1
                self._add_tokens(step, reacts_to, trajectory.id)
                failed = any(record.result.is_tool_error for record in step.calls)
                reacts_to = "after a failed call" if failed else "after a call"

    def result(self, top: int) -> Analysis:
        """What was found, with the `top` kinds of errors and forking tokens."""
        errors = sorted(self._errors.values(), key=lambda kind: -(kind.in_correct + kind.in_wrong))
        forks = [token for token in self._forks.values() if token.forks]
        return Analysis(
            trajectories=self._count,
            steps=list(self._steps.values()),
            stages=list(self._stages.values()),
            errors=errors[:top],
            calls_per_turn={stage: dict(sorted(counts.items())) for stage, counts in self._calls_per_turn.items()},
            positions=list(self._positions.values()),
            forking_tokens=sorted(forks, key=lambda token: -token.forks)[:top],
        )

    def _add_error(self, record: CallRecord, trajectory: Trajectory) -> None:
        kind, text = error_kind(record)
        status = record.result.status
        found = self._errors.setdefault(
            (status, kind), ErrorKind(status=status, kind=kind, example=trajectory.id, text=text)
        )
        found.in_correct += trajectory.verdict.correct
        found.in_wrong += not trajectory.verdict.correct
        found.by_stage[trajectory.stage] = found.by_stage.get(trajectory.stage, 0) + 1

    def _add_tokens(self, step: Step, reacts_to: str, trajectory: str) -> None:
        for index, token in enumerate(step.tokens):
            assert token.logprob is not None, "model tokens were sampled"
            opening = index < OPENING_TOKENS
            position = self._positions[f"{reacts_to}, {'opening' if opening else 'later'}"]
            fork = token.logprob < FORK_LOGPROB
            position.tokens += 1
            position.forks += fork
            position.surprisal_total -= token.logprob
            found = self._forks.setdefault(token.id, ForkingToken(id=token.id, token=token.text))
            found.occurrences += 1
            if fork:
                found.forks += 1
                found.after_tool += opening and reacts_to != "first turn"
                found.fork_surprisal_mean += (-token.logprob - found.fork_surprisal_mean) / found.forks
                if -token.logprob > self._most_surprising[token.id]:
                    self._most_surprising[token.id] = -token.logprob
                    found.example, found.text = trajectory, _around(step.tokens, index)


_POSITIONS = [
    f"{reacts_to}, {part}"
    for reacts_to in ("first turn", "after a call", "after a failed call")
    for part in ("opening", "later")
]


def error_kind(record: CallRecord) -> tuple[str, str]:
    """In which way a call failed: the kind, and the text that tells."""
    result = record.result
    if result.status == "error":
        last = result.stderr.rstrip().rpartition("\n")[2]
        names = _EXCEPTION.findall(result.stderr)
        return (names[-1] if names else f"exit code {result.exit_code}"), last
    if result.status == "invalid_call":
        return result.reason.partition(":")[0], result.reason
    return "", result.reason


def _around(tokens: tuple[Token, ...], index: int) -> str:
    """A token in its place: `before«token»after`."""
    before = "".join(token.text for token in tokens[:index])[-_CONTEXT:]
    after = "".join(token.text for token in tokens[index + 1 :])[:_CONTEXT]
    return f"{before}«{tokens[index].text}»{after}"


def analyse(trajectories: Iterable[Trajectory], decode: Decode, top: int = 20) -> Analysis:
    """Ask all of these trajectories."""
    analyst = Analyst(decode)
    for trajectory in trajectories:
        analyst.add(trajectory)
    return analyst.result(top)
