"""The report's figures: each knows what it shows, what it needs, and how to draw it from a run's metrics.

Invariant:
- a figure that lacks its data is None, with a reason that a reader understands; nothing is drawn from guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from orchestration.metrics import Record, column, figure, names_with_prefix, of_kind
from orchestration.plot_frame import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SEQUENCE,
    SKY,
    YELLOW,
    positions,
    steps_chart,
    style,
)

PARTS_OF_A_STEP = {
    "rollout": ("generation and tools", BLUE),
    "learn": ("learning", GREEN),
    "sync": ("weight sync", ORANGE),
}
"""`time_<part>_s` -> what it is called and its colour; parts that are not listed go by their own names."""


class Drawn(NamedTuple):
    """A figure, or why there is none."""

    title: str
    caption: str
    figure: go.Figure | None
    missing: str = ""


def draw_all(records: Sequence[Record]) -> list[Drawn]:
    """Every figure of the report, in reading order."""
    steps = of_kind(records, "step")
    evaluations = of_kind(records, "evaluation")
    tuned = of_kind(records, "fine_tune")
    return [
        _evaluations(evaluations),
        _families(evaluations),
        _lines(
            "Reward",
            "Mean reward of a step's rollouts, before resampling; and the share of them that solved their problem.",
            steps,
            {"reward_mean": ("mean reward", BLUE), "solved_share": ("solved", GREEN)},
        ),
        _lines(
            "Response length",
            "Tokens after the prompt, by the model and from its tools, mean over a step's rollouts.",
            steps,
            {"response_tokens_mean": ("tokens", BLUE)},
        ),
        _lines(
            "Tool errors",
            "Share of tool calls that failed. GRPO-RoC prefers correct trajectories with few of them.",
            steps,
            {
                "tool_error_share_in_correct": ("in correct trajectories", RED),
                "tool_error_share": ("in all trajectories", GREY),
            },
            percent=True,
        ),
        _lines(
            "Unfinished rollouts",
            "Shares of rollouts that ran into a limit, and that gave no answer.",
            steps,
            {"truncated_share": ("truncated", ORANGE), "no_answer_share": ("no answer", PINK)},
            percent=True,
        ),
        _by_generator(
            "KV cache in use",
            "Share of each generator's KV cache that was in use, on average over the rollouts of the step.",
            steps,
            "kv_used_share_",
            percent=True,
        ),
        _lines(
            "Waiting for a lease",
            "Share of rollouts that could not start at once, since the balancer saw no room for them on any generator.",
            steps,
            {"queued_share": ("rollouts that waited", BLUE)},
            percent=True,
        ),
        _step_time(steps),
        _lines(
            "Idle generators",
            "Share of the whole step, learning included, in which engines took no steps; mean over generators.",
            steps,
            {"generator_idle_share": ("idle", BLUE)},
            percent=True,
        ),
        _lines(
            "Staleness",
            "By how many versions the weights that sampled a token were behind those that learned from it; 0 in "
            "synchronous training.",
            steps,
            {"staleness_mean": ("mean", BLUE), "staleness_max": ("largest", GREY)},
        ),
        _lines(
            "Generation speed",
            "Tokens that all generators together sampled in a second of the rollout phase.",
            steps,
            {"tokens_per_s": ("tokens/s", BLUE)},
        ),
        _lines(
            "Engine against learner",
            "The same tokens under the same weights: how far the engine's log-probabilities are from the learner's. "
            "The engine's rounding sets the floor; a rise means that the weights or the tokens differ.",
            steps,
            {
                "learner_engine_mismatch_mean_abs": ("mean |Δ log p|", BLUE),
                "learner_mismatch_kl": ("KL", ORANGE),
            },
            log=True,
        ),
        _lines(
            "Gradient norm",
            "Norm of the gradient before it is clipped.",
            steps,
            {"learner_gradient_norm": ("gradient norm", BLUE)},
        ),
        _lines(
            "Entropy",
            "Mean entropy of the policy over the model's tokens, in nats: a collapse means that it no longer explores.",
            steps,
            {"learner_entropy": ("entropy", GREEN)},
        ),
        _lines(
            "Fine-tuning loss",
            "Mean negative log-likelihood of the tokens that the model is taught (tool and prompt tokens are masked).",
            tuned,
            {"learner_loss": ("loss", BLUE)},
            what="fine-tuning step",
        ),
    ]


def _missing(title: str, caption: str, reason: str) -> Drawn:
    return Drawn(title, caption, None, reason)


def _lines(
    title: str,
    caption: str,
    records: Sequence[Record],
    series: dict[str, tuple[str, str]],
    *,
    percent: bool = False,
    log: bool = False,
    what: str = "optimiser step",
) -> Drawn:
    """Figures over steps, one line each; null leaves a gap."""
    if not records:
        return _missing(title, caption, f"no {what} was recorded")
    known = {name: style for name, style in series.items() if any(v is not None for v in column(records, name))}
    if not known:
        return _missing(title, caption, f"the steps do not tell {' or '.join(series)}")
    chart = steps_chart(records, what)
    for name, (label, colour) in known.items():
        values = column(records, name)
        if log:  # a log axis has no place for zero
            values = [value if value is not None and value > 0 else None for value in values]
        chart.add_scatter(
            x=positions(records),
            y=values,
            name=label,
            mode="lines+markers" if len(records) <= 60 else "lines",
            line={"color": colour, "width": 2},
            marker={"size": 5},
            hovertemplate=f"{label}: %{{y:{'.1%' if percent else '.4g'}}}<extra></extra>",
        )
    if percent:
        chart.update_yaxes(tickformat=".1~%")
    if log:
        chart.update_yaxes(type="log", exponentformat="power", dtick=1)
    else:
        chart.update_yaxes(rangemode="tozero")
    chart.update_layout(showlegend=len(known) > 1)
    return Drawn(title, caption, chart)


def _by_generator(title: str, caption: str, steps: Sequence[Record], prefix: str, *, percent: bool) -> Drawn:
    """One line for each generator that the metrics name."""
    names = names_with_prefix(steps, prefix)
    if not names:
        reason = "no optimiser step was recorded" if not steps else f"the steps have no {prefix}<generator>"
        return _missing(title, caption, reason)
    series = {name: (name.removeprefix(prefix), SEQUENCE[index % len(SEQUENCE)]) for index, name in enumerate(names)}
    return _lines(title, caption, steps, series, percent=percent)


def _evaluations(evaluations: Sequence[Record]) -> Drawn:
    """Accuracy on held-out problems, with its interval, evaluation by evaluation."""
    title = "Held-out accuracy"
    caption = "Share of held-out problems solved after each stage; bars are 95% confidence intervals (Wilson)."
    known = [record for record in evaluations if figure(record, "accuracy") is not None]
    if not known:
        return _missing(title, caption, "no evaluation was recorded")
    values = [figure(record, "accuracy") or 0.0 for record in known]
    highs = [(figure(r, "accuracy_high") or value) - value for r, value in zip(known, values, strict=True)]
    lows = [value - _or(figure(r, "accuracy_low"), value) for r, value in zip(known, values, strict=True)]
    labels = _labels(known)
    chart = go.Figure()
    chart.add_bar(
        x=labels,
        y=values,
        width=0.5,
        marker={"color": [SKY] + [BLUE] * (len(known) - 1)},
        error_y={"type": "data", "array": highs, "arrayminus": lows, "color": INK, "thickness": 1.4, "width": 6},
        customdata=[[figure(record, "problems")] for record in known],
        hovertemplate="%{x}: %{y:.1%} of %{customdata[0]} problems<extra></extra>",
    )
    for label, value, high in zip(labels, values, highs, strict=True):
        chart.add_annotation(
            x=label, y=value + high, text=f"<b>{value:.1%}</b>", showarrow=False, yshift=12, font={"color": INK}
        )
    style(chart)
    chart.update_layout(showlegend=False, yaxis={"range": [0, 1.08], "tickformat": ".0%", "dtick": 0.25})
    return Drawn(title, caption, chart)


def _families(evaluations: Sequence[Record]) -> Drawn:
    """Accuracy by family of problems, state by state."""
    title, caption = "Accuracy by family", "The same evaluations, by the kind of problem."
    apart = {"accuracy_low", "accuracy_high"}
    names = [name for name in names_with_prefix(evaluations, "accuracy_") if name not in apart]
    if not names:
        reason = "the evaluations name no families" if evaluations else "no evaluation was recorded"
        return _missing(title, caption, reason)
    chart = go.Figure()
    colours = (SKY, BLUE, GREEN, ORANGE, PINK, RED, YELLOW, GREY)
    families = [name.removeprefix("accuracy_").replace("_", " ") for name in names]
    for index, (record, label) in enumerate(zip(evaluations, _labels(evaluations), strict=True)):
        chart.add_bar(
            x=families,
            y=[figure(record, name) for name in names],
            name=label,
            marker={"color": colours[index % len(colours)]},
            hovertemplate=f"{label}, %{{x}}: %{{y:.1%}}<extra></extra>",
        )
    style(chart)
    chart.update_layout(barmode="group", bargap=0.3, yaxis={"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.25})
    chart.update_layout(legend={"y": 1.02, "yanchor": "bottom"})  # long names of families slant into the space below
    return Drawn(title, caption, chart)


def _labels(evaluations: Sequence[Record]) -> list[str]:
    """Names of evaluations; a state that was evaluated several times also tells the step."""
    names = [str(record.get("stage", "")) for record in evaluations]
    labels = [
        n if names.count(n) == 1 else f"{n}, step {r.get('step')}" for n, r in zip(names, evaluations, strict=True)
    ]
    # A bar chart would lay bars of one label on top of each other.
    return [n if labels.count(n) == 1 else f"{n} ({labels[: i + 1].count(n)})" for i, n in enumerate(labels)]


def _step_time(steps: Sequence[Record]) -> Drawn:
    """Where the time of each step went, stacked."""
    title = "Time of a step"
    caption = "Seconds of each optimiser step, by what they were spent on."
    names = [name for name in names_with_prefix(steps, "time_") if name != "time_total_s"]
    if not names:
        return _missing(
            title, caption, "the steps have no time_<part>_s" if steps else "no optimiser step was recorded"
        )
    order = [*PARTS_OF_A_STEP]
    parts = sorted(
        (name.removeprefix("time_").removesuffix("_s") for name in names),
        key=lambda part: order.index(part) if part in order else len(order),
    )
    chart = steps_chart(steps, "optimiser step")
    x = positions(steps)
    spent = [0.0] * len(steps)
    for part in parts:
        label, colour = PARTS_OF_A_STEP.get(part, (part.replace("_", " "), RED))
        values = [_or(value, 0.0) for value in column(steps, f"time_{part}_s")]
        spent = [before + value for before, value in zip(spent, values, strict=True)]
        _add_seconds(chart, x, values, label, colour)
    totals = column(steps, "time_total_s")
    rest = [max(0.0, _or(total, used) - used) for total, used in zip(totals, spent, strict=True)]
    if sum(rest) > 0.01 * sum(spent):
        _add_seconds(chart, x, rest, "other", GREY)
    chart.update_layout(barmode="stack", bargap=0.15, yaxis={"ticksuffix": " s"}, legend={"traceorder": "normal"})
    return Drawn(title, caption, chart)


def _add_seconds(chart: go.Figure, x: Sequence[float], y: Sequence[float], label: str, colour: str) -> None:
    hover = f"{label}: %{{y:.2f}} s<extra></extra>"
    chart.add_bar(x=x, y=y, name=label, marker={"color": colour, "line": {"width": 0}}, hovertemplate=hover)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
