"""An evaluation as one HTML page: the figures, and every answer. It opens without a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestration.evaluation.answers import Answer
from orchestration.evaluation.summary import BenchmarkSummary, percent, rows
from orchestration.run_folder import write_whole

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } th, td { border-bottom: 1px solid #ddd; padding: .3rem .7rem; text-align: left; }
pre { white-space: pre-wrap; background: #f6f6f4; padding: .6rem; border-left: 3px solid #bbb; }
pre.tool { border-color: #5b8; } details { margin: .3rem 0; } summary { cursor: pointer; }
.right { color: #157a3c; } .wrong { color: #a33; } .quiet { color: #777; }
"""


def write_page(
    path: Path, title: str, settings: dict[str, Any], summaries: Sequence[BenchmarkSummary], answers: Sequence[Answer]
) -> Path:
    """Write the page; returns `path`."""
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        _figures(summaries),
        "<details><summary>settings</summary><pre>"
        + escape("\n".join(f"{name}: {value}" for name, value in settings.items()))
        + "</pre></details>",
        *(_benchmark(each.name, answers) for each in summaries),
        "</html>",
    ]
    write_whole(path, "\n".join(parts))
    return path


def _figures(summaries: Sequence[BenchmarkSummary]) -> str:
    names = "".join(f"<th>{escape(each.name)}</th>" for each in summaries)
    told = [*rows(summaries), ("", ["; ".join(_details(each)) for each in summaries])]
    lines = [
        f"<tr><th>{escape(title)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for title, cells in told
        if any(cells)
    ]
    return f"<table><tr><th></th>{names}</tr>{''.join(lines)}</table>"


def _details(summary: BenchmarkSummary) -> list[str]:
    """By family, and what a rule grader says besides."""
    families = [f"{name}: {percent(found)}" for name, found in summary.families.items()]
    return families + [f"{name}: {value:.1%}" for name, value in summary.figures.items()]


def _benchmark(name: str, answers: Sequence[Answer]) -> str:
    by_problem: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.benchmark == name:
            by_problem[answer.problem].append(answer)
    parts = [f"<h2>{escape(name)}</h2>"]
    for problem, group in by_problem.items():
        right = sum(answer.correct for answer in group)
        parts.append(
            f"<details><summary><b>{escape(problem)}</b> {right} of {len(group)} right</summary>"
            f"<pre>{escape(group[0].question)}</pre><p>gold: <code>{escape(group[0].gold)}</code></p>"
            + "".join(map(_answer, sorted(group, key=lambda each: each.sample)))
            + "</details>"
        )
    return "\n".join(parts)


def _answer(answer: Answer) -> str:
    verdict = "right" if answer.correct else "wrong"
    said = "".join(f"<pre class='{part.who}'>{escape(part.text)}</pre>" for part in answer.parts)
    return (
        f"<details><summary>sample {answer.sample}: <span class='{verdict}'>{verdict}</span> "
        f"<code>{escape(answer.extracted)}</code> <span class='quiet'>{escape(answer.reason)}, {answer.finish}, "
        f"{answer.response_tokens} tokens, {answer.calls} calls</span></summary>{said}</details>"
    )
