"""What changed between two checkpoints: how both answered the same problems.

Invariants:
- only problems that both have answered are compared, each by its share of right answers;
- problems are paired: the interval of the difference is a bootstrap over problems' own differences;
- every change comes with the counts that it is made of, and a problem that changed with the ids of two examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from orchestration.archive.analysis import Analysis, Analyst
from orchestration.archive.source import Decode
from orchestration.evaluation.estimators import over_problems
from policies.trajectory import Trajectory


class Side(BaseModel):
    """One checkpoint's answers to the compared problems. Shares are None where there is nothing to share."""

    stage: str
    trajectories: int
    right_share: float
    tokens_mean: float
    """After the prompt."""
    turns_mean: float
    calls_mean: float
    failed_share: float | None
    """Of the calls."""
    forking_share: float | None
    """Of the model's tokens: those sampled with a probability below one half."""
    surprisal_mean: float | None
    """Nats a token: an estimate of the mean entropy."""


class ProblemChange(BaseModel):
    """A problem that one checkpoint answers better than the other."""

    problem: str
    before: float
    """Share of right answers."""
    after: float
    before_example: str
    """Id of a trajectory: a right one of the better side, a wrong one of the other."""
    after_example: str


class CountChange(BaseModel):
    """Something that both were counted for."""

    what: str
    before: int
    after: int


class Changes(BaseModel):
    """What `compare` found."""

    before: Side
    after: Side
    problems: int
    """That both have answered."""
    better: int
    worse: int
    difference: float
    """Of the mean share of right answers over problems."""
    low: float
    """Ends of its 95% interval."""
    high: float
    gained: list[ProblemChange]
    """The largest changes first."""
    lost: list[ProblemChange]
    errors: list[CountChange]
    """Kinds of failed calls, the largest changes first."""
    forking_tokens: list[CountChange]
    """Tokens by how often they were sampled against the odds, the largest changes first."""


class NothingInCommon(ValueError):
    """The two sides have answered no problem both."""


def compare(before: Iterable[Trajectory], after: Iterable[Trajectory], decode: Decode, top: int = 20) -> Changes:
    """Compare two checkpoints' trajectories.

    Args:
        top: how many problems, kinds of errors and tokens to list.

    Raises `NothingInCommon` if no problem is answered by both.
    """
    sides = [_by_problem(before), _by_problem(after)]
    common = [problem for problem in sides[0] if problem in sides[1]]
    if not common:
        raise NothingInCommon("no problem was answered by both; compare stages that were asked the same (evaluations)")
    shares = [[_right(side[problem]) for problem in common] for side in sides]
    estimate = over_problems([late - early for early, late in zip(*shares, strict=True)])
    changed = [
        ProblemChange(
            problem=problem,
            before=early,
            after=late,
            before_example=_example(sides[0][problem], right=early > late),
            after_example=_example(sides[1][problem], right=late > early),
        )
        for problem, early, late in zip(common, *shares, strict=True)
        if early != late
    ]
    changed.sort(key=lambda change: -abs(change.after - change.before))
    gained = [change for change in changed if change.after > change.before]
    lost = [change for change in changed if change.after < change.before]
    asked = [_analysed([each for problem in common for each in side[problem]], decode) for side in sides]
    return Changes(
        before=_side(asked[0], shares[0]),
        after=_side(asked[1], shares[1]),
        problems=len(common),
        better=len(gained),
        worse=len(lost),
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        gained=gained[:top],
        lost=lost[:top],
        errors=_counts(_errors(asked[0]), _errors(asked[1]), top),
        forking_tokens=_counts(_forks(asked[0]), _forks(asked[1]), top),
    )


def _by_problem(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Of several attempts under one id the last counts."""
    last = {trajectory.id: trajectory for trajectory in trajectories}
    found: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in last.values():
        found[trajectory.problem.id].append(trajectory)
    return found


def _right(trajectories: Sequence[Trajectory]) -> float:
    return sum(trajectory.verdict.correct for trajectory in trajectories) / len(trajectories)


def _example(trajectories: Sequence[Trajectory], *, right: bool) -> str:
    return next(trajectory.id for trajectory in trajectories if trajectory.verdict.correct == right)


def _analysed(trajectories: Sequence[Trajectory], decode: Decode) -> Analysis:
    analyst = Analyst(decode)
    for trajectory in trajectories:
        analyst.add(trajectory)
    return analyst.result(top=1 << 30)


def _side(asked: Analysis, shares: Sequence[float]) -> Side:
    (stage, *others) = asked.stages
    assert not others, "a side is one stage"
    both = (stage.correct, stage.wrong)
    count, calls = asked.trajectories, sum(each.calls for each in both)
    tokens = sum(position.tokens for position in asked.positions)
    return Side(
        stage=stage.stage,
        trajectories=count,
        right_share=sum(shares) / len(shares),
        tokens_mean=sum(each.tokens for each in both) / count,
        turns_mean=sum(each.turns for each in both) / count,
        calls_mean=calls / count,
        failed_share=sum(each.failed for each in both) / calls if calls else None,
        forking_share=sum(position.forks for position in asked.positions) / tokens if tokens else None,
        surprisal_mean=sum(position.surprisal_total for position in asked.positions) / tokens if tokens else None,
    )


def _errors(asked: Analysis) -> dict[str, int]:
    return {f"{kind.status} {kind.kind}".strip(): kind.in_correct + kind.in_wrong for kind in asked.errors}


def _forks(asked: Analysis) -> dict[str, int]:
    """By text: two tokens that look alike are added up."""
    found: dict[str, int] = defaultdict(int)
    for token in asked.forking_tokens:
        found[token.token] += token.forks
    return found


def _counts(before: dict[str, int], after: dict[str, int], top: int) -> list[CountChange]:
    names = dict.fromkeys([*before, *after])
    counts = [CountChange(what=name, before=before.get(name, 0), after=after.get(name, 0)) for name in names]
    changed = [count for count in counts if count.before != count.after]
    return sorted(changed, key=lambda count: -abs(count.after - count.before))[:top]
