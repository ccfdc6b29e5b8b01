"""A run's folder -> `report.html`: one page that needs neither a network nor a server.

Invariants:
- any folder gives a page: a run that died, or never started, gets one that says what is missing and why;
- what the model wrote, and all else that comes from the folder, is escaped: it is text, never markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from orchestration.analysis_report import analysis_section
from orchestration.metrics import figure, of_kind
from orchestration.plot_frame import FAINT, FONT, INK
from orchestration.plots import Drawn, draw_all
from orchestration.progress import RunTable, format_figure, format_seconds
from orchestration.report_source import RunFolder, as_list, read_run
from orchestration.run_folder import RECIPE_FILE, write_whole

REPORT_FILE = "report.html"
_EXAMPLES_SHOWN = 12
REFRESH_S = 30


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into the run's folder, replacing an older one at once; returns its path.

    Raises `NotADirectoryError` if there is no such folder.
    """
    path = run_folder / REPORT_FILE
    write_whole(path, render(read_run(run_folder)))
    return path


def render(run: RunFolder) -> str:
    """The page."""
    figures = draw_all(run.records)
    sections = [
        _notices(run),
        _stage_table(run),
        _figures(figures),
        _absent_figures(figures),
        analysis_section(run.analysis),
        _examples(run.examples),
        _facts(run),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{_refresh(run)}
<title>{escape(run.name)} · greenroom</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<header><p class="kicker">greenroom run</p><h1>{escape(run.name)}</h1>{_lead(run)}</header>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _refresh(run: RunFolder) -> str:
    """Has the browser read the page again while the run goes on."""
    return "" if run.summary else f'<meta http-equiv="refresh" content="{REFRESH_S}">'


def _lead(run: RunFolder) -> str:
    """The line under the title: what came of it, in one sentence."""
    rows = [row for row in run.stages if figure(row, "accuracy") is not None]
    parts = []
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        parts.append(
            f"Held-out accuracy went from {first['accuracy']:.1%} ({first.get('name')}) "
            f"to {last['accuracy']:.1%} ({last.get('name')})."
        )
    elif rows:
        parts.append(f"Held-out accuracy is {rows[0]['accuracy']:.1%} ({rows[0].get('name')}).")
    seconds = figure(run.summary, "wall_seconds")
    if seconds is not None:
        parts.append(f"Training took {format_seconds(seconds)}.")
    return f'<p class="lead">{escape(" ".join(parts))}</p>' if parts else ""


def _notices(run: RunFolder) -> str:
    """What the reader must know before believing the figures."""
    notices = list(run.missing)
    if run.summary and run.summary.get("finished") is not True:
        reason = run.summary.get("reason") or "no reason was recorded"
        notices.insert(0, f"This run did not finish: {reason}")
    if not notices:
        return ""
    return '<section class="notice">' + "".join(f"<p>{escape(text)}</p>" for text in notices) + "</section>"


def _stage_table(run: RunFolder) -> str:
    table = RunTable(run.stages)
    if not table.rows():
        return '<section><h2>Stages</h2><p class="faint">No stage was evaluated.</p></section>'
    columns, rows = [*table.columns], [[*row] for row in table.rows()]
    if any("problems" in stage for stage in run.stages):
        columns.insert(2, "problems")
        for row, stage in zip(rows, run.stages, strict=True):
            row.insert(2, format_figure("problems", stage.get("problems")))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<section><h2>Held-out problems after each stage</h2>"
        f'<table class="stages"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>'
    )


def _figures(figures: Sequence[Drawn]) -> str:
    cards = []
    for drawn in figures:
        if drawn.figure is None:
            continue
        plot = drawn.figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displayModeBar": False, "responsive": True},
            default_height=f"{drawn.figure.layout.height}px",
        )
        cards.append(
            f'<article><h3>{escape(drawn.title)}</h3><p class="faint">{escape(drawn.caption)}</p>{plot}</article>'
        )
    return f'<section class="grid">{"".join(cards)}</section>' if cards else ""


def _absent_figures(figures: Sequence[Drawn]) -> str:
    absent = [drawn for drawn in figures if drawn.figure is None]
    if not absent:
        return ""
    items = "".join(f"<li><b>{escape(d.title)}</b>: {escape(d.missing)}</li>" for d in absent)
    return f'<section><h2>Not drawn</h2><ul class="faint">{items}</ul></section>'


def _facts(run: RunFolder) -> str:
    """A short table: what ran, on what, for how long, and how the work was shared."""
    summary, steps = run.summary, of_kind(run.records, "step")
    facts: list[tuple[str, str]] = []
    for key, label in (("engine", "engine"), ("sandbox", "sandbox"), ("isolation", "isolation"), ("seed", "seed")):
        value = summary.get(key, run.recipe.get(key))
        if value is not None:
            facts.append((label, str(value)))
    seconds = figure(summary, "wall_seconds")
    if seconds is not None:
        facts.append(("training time", format_seconds(seconds)))
    for label, found in (
        ("fine-tuning steps", of_kind(run.records, "fine_tune")),
        ("optimiser steps", steps),
        ("evaluations", of_kind(run.records, "evaluation")),
    ):
        facts.append((label, f"{len(found):,}"))
    kept = [value for record in steps if (value := figure(record, "kept_rollouts")) is not None]
    if kept:
        facts.append(("trajectories trained on", f"{sum(kept):,.0f}"))
    for key, label in (
        ("peak_in_flight", "rollouts in flight at the peak"),
        ("queued_share", "rollouts that waited for a lease"),
    ):
        if key in summary:
            facts.append((label, format_figure(key, summary[key])))
    generators = summary.get("generators")
    if isinstance(generators, Mapping):
        for name, entry in generators.items():
            if isinstance(entry, Mapping):
                share = format_figure("turn_share", entry.get("share"))
                facts.append((f"turns of {name}", f"{format_figure('turns', entry.get('turns'))} ({share})"))
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in facts)
    recipe = ""
    if run.recipe:
        text = (run.path / RECIPE_FILE).read_text(encoding="utf-8")
        recipe = f"<details><summary>recipe.toml, as it ran</summary><pre>{escape(text)}</pre></details>"
    return f'<section><h2>The run</h2><table class="facts"><tbody>{rows}</tbody></table>{recipe}</section>'


def _examples(examples: Sequence[Mapping[str, Any]]) -> str:
    """A few trajectories to read."""
    if not examples:
        return ""
    blocks = "".join(_example(example) for example in examples[:_EXAMPLES_SHOWN])
    return f"<section><h2>Trajectories to read</h2>{blocks}</section>"


def _example(example: Mapping[str, Any]) -> str:
    """One trajectory, folded: the verdict and the problem; open: who said what."""
    badge = ""
    if isinstance(example.get("correct"), bool):
        verdict = "right" if example["correct"] else "wrong"
        badge = f'<span class="{verdict}">{verdict}</span>'
    title = escape(str(example.get("title") or "trajectory"))
    problem = escape(str(example.get("problem", "")))
    gold = f" · answer {escape(str(example['gold']))}" if "gold" in example else ""
    parts = []
    for part in as_list(example.get("parts")):
        if isinstance(part, Mapping):
            kind = _part_kind(part)
            text = escape(str(part.get("text", "")))
            parts.append(f'<div class="part {kind}"><span>{kind}</span><pre>{text}</pre></div>')
    return f"<details><summary>{badge}<b>{title}</b> {problem}{gold}</summary>{''.join(parts)}</details>"


def _part_kind(part: Mapping[str, Any]) -> str:
    kind = part.get("kind")
    return kind if kind in ("prompt", "model", "tool") else "other"


_STYLE = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: #f5f6f8; color: {INK}; font: 15px/1.5 {FONT}; }}
header, main {{ max-width: 1280px; margin: 0 auto; padding: 0 32px; }}
header {{ padding-top: 40px; }}
h1 {{ font-size: 32px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }}
h2 {{ font-size: 18px; margin: 0 0 12px; }}
h3 {{ font-size: 15px; margin: 0; }}
p {{ margin: 0; }}
pre {{ margin: 0; font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.kicker {{ color: {FAINT}; font-size: 13px; letter-spacing: 0.06em; text-transform: uppercase; }}
.lead {{ font-size: 18px; color: #3a4653; margin-top: 8px; }}
.faint {{ color: {FAINT}; font-size: 13px; }}
section {{ margin: 28px 0; }}
.notice {{ background: #fff5e0; border-left: 4px solid #e69f00; padding: 12px 16px; border-radius: 4px; }}
table, article, details {{ background: white; border-radius: 8px; box-shadow: 0 0 0 1px #e3e6ea; }}
table {{ border-collapse: collapse; overflow: hidden; }}
th, td {{ padding: 9px 18px; text-align: right; font-variant-numeric: tabular-nums; }}
th {{ font-weight: 600; font-size: 13px; color: {FAINT}; }}
th:first-child, td:first-child {{ text-align: left; }}
.stages {{ width: 100%; }}
.stages td:first-child {{ font-weight: 600; }}
.stages tbody tr, .facts tr + tr {{ border-top: 1px solid #edeff2; }}
.facts td, .facts thead th {{ text-align: left; }}
.told h3 {{ margin-top: 18px; }}
.told h3 + p {{ margin-bottom: 6px; }}
.facts th, .facts td {{ padding: 6px 18px; }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 20px; }}
article {{ padding: 18px 20px 8px; min-width: 0; }}
article p {{ min-height: 40px; }}
ul {{ margin: 0; padding-left: 20px; }}
details {{ margin-top: 10px; padding: 10px 16px; }}
summary {{ cursor: pointer; overflow-wrap: anywhere; }}
.right, .wrong {{ font-size: 12px; font-weight: 600; border-radius: 9px; padding: 1px 9px; margin-right: 8px; }}
.right {{ background: #d9f2e8; color: #00634a; }}
.wrong {{ background: #fde3d3; color: #963f00; }}
.part {{ border-left: 3px solid #c9d0d8; padding: 4px 12px; margin: 10px 0; }}
.part span {{ color: {FAINT}; font-size: 12px; }}
.part.model {{ border-color: #0072b2; background: #f3f8fc; }}
.part.tool {{ border-color: #e69f00; background: #fffaf0; }}
@media print {{ body {{ background: white; }} article {{ break-inside: avoid; }} }}
"""
