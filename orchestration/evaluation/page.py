"""An evaluation as one HTML page: the figures, and every answer. It opens without a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestration.evaluation.answers import Answer
from orchestration.evaluation.summary import BenchmarkSummary, percent
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
    heads = ("benchmark", "problems", "avg@k", "pass@k", "maj@k", "tokens", "calls", "tool errors", "cut off")
    rows = []
    for each in summaries:
        passes = "<br>".join(f"@{k}: {percent(found)}" for k, found in each.pass_at.items())
        cells = (
            escape(each.name),
            f"{each.problems} x {each.samples}" + (f", {each.incomplete} not complete" if each.incomplete else ""),
            percent(each.average),
            passes,
            "-" if each.majority is None else percent(each.majority),
            f"{each.response_tokens:.0f}",
            f"{each.calls:.2f}",
            f"{each.tool_error_share:.1%}",
            f"{each.truncated_share:.1%}",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        details = [f"{name}: {percent(found)}" for name, found in each.families.items()]
        details += [f"{name}: {value:.1%}" for name, value in each.figures.items()]
        if details:
            rows.append(f"<tr><td></td><td colspan='8' class='quiet'>{escape('; '.join(details))}</td></tr>")
    return "<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>" + "".join(rows) + "</table>"


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
