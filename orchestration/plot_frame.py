"""What the figures of all pages have in common: colours, the axis of steps, the frame.

Invariant: a thing has one colour on the whole page (a stage, a generator, a part of the step), from a palette that
people with colour-blindness can tell apart (Okabe and Ito, 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from orchestration.metrics import Record, figure

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#c9b800",
    "#8a929c",
)
SEQUENCE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY)
INK, FAINT, RULE = "#1d2733", "#66707c", "#e6e9ed"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif'


class Stretch(NamedTuple):
    """Consecutive steps of one stage."""

    stage: str
    first: float
    last: float


def positions(steps: Sequence[Record]) -> list[float]:
    """Where each record stands on the axis of steps: at its step, counted on where a stage begins to count anew."""
    found: list[float] = []
    offset, last, stage = 0.0, 0.0, None
    for record in steps:
        step = figure(record, "step") or 0.0
        if record.get("stage") != stage and stage is not None and step + offset <= last:
            offset = last
        stage, last = record.get("stage"), step + offset
        found.append(last)
    return found


def stretches(steps: Sequence[Record]) -> list[Stretch]:
    """The stages of consecutive steps, in order, by optimiser step."""
    found: list[Stretch] = []
    for record, step in zip(steps, positions(steps), strict=True):
        stage = str(record.get("stage", ""))
        if found and found[-1].stage == stage:
            found[-1] = found[-1]._replace(last=step)
        else:
            found.append(Stretch(stage, step, step))
    return found


def steps_chart(records: Sequence[Record], what: str) -> go.Figure:
    """An empty figure over steps, with the stages' boundaries marked."""
    chart = go.Figure()
    style(chart)
    chart.update_layout(hovermode="x unified")
    chart.update_xaxes(title={"text": what, "font": {"size": 12, "color": FAINT}, "standoff": 6})
    marks = stretches(records)
    if marks:
        chart.update_xaxes(range=[marks[0].first - 0.7, marks[-1].last + 0.7])
        if marks[-1].last - marks[0].first < 10:  # there are no half steps
            chart.update_xaxes(dtick=1)
    for index, stretch in enumerate(marks):
        if index:
            boundary = (marks[index - 1].last + stretch.first) / 2
            chart.add_vline(x=boundary, line={"color": GREY, "width": 1, "dash": "dot"})
        if len(marks) > 1:
            chart.add_annotation(
                x=(stretch.first + stretch.last) / 2,
                y=1,
                yref="paper",
                yanchor="bottom",
                text=stretch.stage,
                showarrow=False,
                font={"size": 11, "color": FAINT},
            )
    return chart


def style(chart: go.Figure) -> None:
    """The page's look: white, light rules, legend above at the right."""
    axis: dict[str, Any] = {
        "gridcolor": RULE,
        "linecolor": RULE,
        "zerolinecolor": RULE,
        "tickfont": {"size": 11, "color": FAINT},
        "automargin": True,
    }
    chart.update_layout(
        template="none",
        height=290,
        margin={"l": 48, "r": 24, "t": 28, "b": 40},
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": -0.24, "yanchor": "top", "font": {"size": 11}},
        hoverlabel={"font": {"family": FONT, "size": 12}},
        xaxis={**axis, "showgrid": False},
        yaxis=axis,
    )
