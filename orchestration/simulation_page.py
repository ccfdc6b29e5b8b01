"""A simulation -> one HTML page that needs neither a network nor a server: comparison, KV and engines over time."""

from __future__ import annotations

from html import escape
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from orchestration.plot_frame import FAINT, FONT, GREY, INK, RULE, SEQUENCE
from orchestration.recipe import Recipe
from orchestration.run_folder import write_whole
from orchestration.simulate import ROWS, written
from orchestration.simulation import Rehearsal

_STYLE = f"""
body {{ font-family: {FONT}; color: {INK}; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
p {{ color: {FAINT}; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid {RULE}; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
.best {{ font-weight: 600; }}
"""


def write_page(path: Path, recipe: Recipe, stage: str, rehearsals: list[Rehearsal]) -> Path:
    """Write the page, replacing an older one at once; returns its path."""
    write_whole(path, render(recipe, stage, rehearsals))
    return path


def render(recipe: Recipe, stage: str, rehearsals: list[Rehearsal]) -> str:
    """The page."""
    title = f"{recipe.name}, {stage}"
    sections = [
        "<h2>Comparison</h2>" + _table(rehearsals),
        _section("Makespan", "Against the lower bound, which no schedule can beat.", _makespans(rehearsals)),
        _section("KV in use", "Mean over all engines.", _kv_over_time(rehearsals)),
    ]
    # The same scales for all: a colour means the same, and what is shorter looks so.
    most = max((count for each in rehearsals for row in each.series.running for count in row), default=0)
    seconds = max((each.series.seconds[-1] for each in rehearsals if each.series.seconds), default=0.0)
    sections += [
        _section(
            f"Engines under {each.strategy}",
            "One row for each engine; the colour is how many requests it has, and white is an idle engine.",
            _gantt(each, most=most, seconds=seconds),
        )
        for each in rehearsals
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · greenroom simulation</title>
<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>
<body><h1>{escape(title)}</h1>
<p>Simulated: {recipe.generators.count} engines. Step times come from the recipe's cost model; nothing ran on them.</p>
{"".join(sections)}
</body></html>
"""


def _table(rehearsals: list[Rehearsal]) -> str:
    head = "".join(f"<th>{escape(each.strategy)}</th>" for each in rehearsals)
    fastest = min(rehearsals, key=lambda each: each.figures["makespan_s"])
    rows = []
    for name, title, how in ROWS:
        cells = "".join(
            f"<td{' class=best' if each is fastest else ''}>{escape(written(each.figures[name], how))}</td>"
            for each in rehearsals
        )
        rows.append(f"<tr><td>{escape(title)}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _section(title: str, caption: str, figure: go.Figure) -> str:
    figure.update_layout(
        font={"family": FONT, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        margin={"l": 60, "r": 20, "t": 10, "b": 45},
        height=320,
    )
    # Plotly's buttons would lie on the legend.
    config = {"displayModeBar": False, "responsive": True}
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return f"<h2>{escape(title)}</h2><p>{escape(caption)}</p>{drawn}"


def _makespans(rehearsals: list[Rehearsal]) -> go.Figure:
    names = [each.strategy for each in rehearsals]
    colours = [SEQUENCE[index % len(SEQUENCE)] for index in range(len(rehearsals))]
    figure = go.Figure(
        go.Bar(x=names, y=[each.figures["makespan_s"] for each in rehearsals], marker_color=colours, name="makespan")
    )
    bounds = [each.figures["lower_bound_s"] for each in rehearsals]
    figure.add_trace(go.Scatter(x=names, y=bounds, mode="lines+markers", line={"color": GREY}, name="lower bound"))
    figure.update_yaxes(title="seconds", gridcolor=RULE, rangemode="tozero")
    return figure


def _kv_over_time(rehearsals: list[Rehearsal]) -> go.Figure:
    figure = go.Figure()
    for index, each in enumerate(rehearsals):
        shares = [100 * sum(row) / len(row) for row in each.series.kv_share]
        line = {"color": SEQUENCE[index % len(SEQUENCE)]}
        figure.add_trace(go.Scatter(x=each.series.seconds, y=shares, mode="lines", line=line, name=each.strategy))
    figure.update_xaxes(title="seconds", gridcolor=RULE)
    figure.update_yaxes(title="% of KV cache", range=[0, 102], gridcolor=RULE)
    return figure


def _gantt(rehearsal: Rehearsal, *, most: int, seconds: float) -> go.Figure:
    """Args: `most` requests have the darkest colour, and the time goes on until `seconds`."""
    series = rehearsal.series
    engines = [f"generator-{index}" for index in range(len(series.running[0]))] if series.running else []
    columns = [list(row) for row in zip(*series.running, strict=True)]
    figure = go.Figure(
        go.Heatmap(
            x=series.seconds,
            y=engines,
            z=columns,
            zmin=0,
            zmax=most,
            colorscale=[[0, "#ffffff"], [0.001, "#d5e8f5"], [1, "#00456f"]],
            colorbar={"title": "requests"},
        )
    )
    figure.update_xaxes(title="seconds", range=[0, seconds])
    figure.update_yaxes(showticklabels=len(engines) <= 16)
    return figure
