"""The figures of an evaluation, from its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import batched
from typing import Any

from rich.table import Table

from orchestration.evaluation.answers import Answer
from orchestration.evaluation.estimators import Estimate, Vote, majority, over_problems, pass_at_k
from policies.answers.notation import Unreadable, normalise

SIDE_BY_SIDE = 3
"""Benchmarks that fit into a terminal of 80 columns."""


@dataclass(frozen=True, slots=True)
class BenchmarkSummary:
    """Of one benchmark. Shares are between 0 and 1; intervals are 95%."""

    name: str
    problems: int
    """With all their samples."""
    incomplete: int
    """Problems left out, since samples are missing (the evaluation was interrupted)."""
    samples: int
    average: Estimate
    """avg@samples; with a judge the mean of its scores."""
    pass_at: dict[int, Estimate]
    majority: Estimate | None
    """maj@samples; None with a single sample, and where answers are no values."""
    response_tokens: float
    turns: float
    calls: float
    tool_call_rate: float
    tool_error_share: float
    truncated_share: float
    no_answer_share: float
    failed: int
    """Answers that could not be played; they count as wrong."""
    families: dict[str, Estimate]
    figures: dict[str, float]
    """Means of what a rule grader says besides."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        data = asdict(self)
        for name in ("average", "majority"):
            data[name] = None if data[name] is None else _plain(data[name])
        return data | {
            "pass_at": {str(k): _plain(each) for k, each in self.pass_at.items()},
            "families": {family: _plain(each) for family, each in self.families.items()},
        }


def _plain(estimate: Estimate) -> dict[str, float]:
    return estimate._asdict()


def summarise(name: str, answers: Iterable[Answer], samples: int, *, values: bool) -> BenchmarkSummary:
    """The figures of one benchmark.

    Args:
        values: whether answers are values that can be voted on.

    Raises `ValueError` if no problem has all its samples.
    """
    by_problem: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.benchmark == name:
            by_problem[answer.problem].append(answer)
    groups = [sorted(group, key=lambda each: each.sample) for group in by_problem.values() if len(group) == samples]
    if not groups:
        raise ValueError(f"{name}: no problem has all {samples} samples yet")
    right = [sum(answer.correct for answer in group) for group in groups]
    credits = [_mean([answer.credit for answer in group]) for group in groups]
    everything = [answer for group in groups for answer in group]
    calls = sum(answer.calls for answer in everything)
    families: dict[str, list[float]] = defaultdict(list)
    for group, credit in zip(groups, credits, strict=True):
        families[group[0].family].append(credit)
    return BenchmarkSummary(
        name=name,
        problems=len(groups),
        incomplete=len(by_problem) - len(groups),
        samples=samples,
        average=over_problems(credits),
        pass_at={k: over_problems([pass_at_k(samples, count, k) for count in right]) for k in powers_of_two(samples)},
        majority=over_problems([majority(votes(group)) for group in groups]) if values and samples > 1 else None,
        response_tokens=_mean([answer.response_tokens for answer in everything]),
        turns=_mean([answer.turns for answer in everything]),
        calls=_mean([answer.calls for answer in everything]),
        tool_call_rate=_mean([answer.calls > 0 for answer in everything]),
        tool_error_share=sum(answer.tool_errors for answer in everything) / calls if calls else 0.0,
        truncated_share=_mean([answer.truncated for answer in everything]),
        no_answer_share=_mean([answer.reason == "no_answer" for answer in everything]),
        failed=sum(answer.finish == "failed" for answer in everything),
        families={name: over_problems(shares) for name, shares in sorted(families.items())}
        if len(families) > 1
        else {},
        figures=_means_of_figures(everything),
    )


def powers_of_two(samples: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... and the number of samples itself."""
    return sorted({samples, *(1 << power for power in range(samples.bit_length()) if 1 << power <= samples)})


def votes(group: Sequence[Answer]) -> list[Vote]:
    """The votes of one problem's samples: answers written in different notation, such as 1,000 and 1000, agree.

    Who was cut off, failed, or left the box empty has no vote.
    """
    return [Vote(_as_vote(answer.extracted) if answer.extracted else None, answer.correct) for answer in group]


def _as_vote(extracted: str) -> str:
    try:
        return normalise(extracted)
    except Unreadable:
        return extracted


def _means_of_figures(answers: list[Answer]) -> dict[str, float]:
    names = sorted({name for answer in answers for name in answer.figures})
    return {name: _mean([answer.figures.get(name, 0.0) for answer in answers]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def rows(summaries: Sequence[BenchmarkSummary]) -> list[tuple[str, list[str]]]:
    """What people read: each figure's title, and the figure of each benchmark."""
    draws = sorted({k for each in summaries for k in each.pass_at})
    titled: list[tuple[str, Callable[[BenchmarkSummary], str]]] = [
        ("problems", lambda each: f"{each.problems}" + f" ({each.incomplete} not whole)" * bool(each.incomplete)),
        ("samples (k)", lambda each: str(each.samples)),
        ("avg@k", lambda each: percent(each.average)),
        *[(f"pass@{k}", lambda each, k=k: percent(each.pass_at.get(k))) for k in draws],
        ("maj@k", lambda each: percent(each.majority)),
        ("tokens", lambda each: f"{each.response_tokens:.0f}"),
        ("turns", lambda each: f"{each.turns:.1f}"),
        ("calls", lambda each: f"{each.calls:.2f}"),
        ("tool errors", lambda each: f"{each.tool_error_share:.1%}"),
        ("cut off", lambda each: f"{each.truncated_share:.1%}"),
        ("failed", lambda each: str(each.failed)),
    ]
    return [(title, [told(each) for each in summaries]) for title, told in titled]


def tables(summaries: Sequence[BenchmarkSummary]) -> Iterator[Table]:
    """For a terminal of 80 columns: a row for each figure, a few benchmarks side by side."""
    for some in batched(summaries, SIDE_BY_SIDE):
        shown = Table(title="evaluation (95% intervals)", title_justify="left")
        shown.add_column("")
        for each in some:
            shown.add_column(each.name, justify="right")
        for title, values in rows(some):
            shown.add_row(title, *values)
        yield shown


def percent(estimate: Estimate | None) -> str:
    """An estimate as people read it; a dash where there is none."""
    if estimate is None:
        return "-"
    return f"{estimate.mean:.1%} ({100 * estimate.low:.1f}–{100 * estimate.high:.1f})"
