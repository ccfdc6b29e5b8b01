"""A replay to the learner on a terminal: what the run has on record, next to what came of it here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.archive.terminal import plain, titled_table
from orchestration.replay.learner import LearnerReplay, StepReplay, WeightsComparison

SHOWN: dict[str, tuple[str, str]] = {
    "learner_loss": ("loss", ".6f"),
    "learner_gradient_norm": ("gradient norm", ".5f"),
    "groups_with_signal": ("groups", ".0f"),
    "learned_rollouts": ("rollouts", ".0f"),
    "advantage_mean_abs": ("|advantage|", ".3f"),
    "learner_entropy": ("entropy", ".4f"),
}
"""Figure -> its heading, and how it is written."""


def learner_tables(replay: LearnerReplay) -> Iterator[RenderableType]:
    """Steps side by side, weights, and what it comes to."""
    yield _steps(replay)
    if replay.weights:
        yield _weights(replay.weights)
    for note in replay.notes:
        yield plain(note, "yellow")
    yield verdict(replay)


def verdict(replay: LearnerReplay) -> Text:
    """What it comes to, in one sentence."""
    steps = len(replay.steps)
    if replay.exact:
        told = f"{steps} steps and {len(replay.weights)} checkpoints are the run's, to the last bit"
        return Text(told, style="bold green")
    if not replay.same_recipe:
        return Text("another recipe than the run's: the figures show what it would have learned from the same rollouts")
    first = next((step for step in replay.steps if step.differing), None)
    if first is not None:
        where = f"{first.stage}, step {first.step}"
        return plain(f"NOT the run: from {where} on, {', '.join(first.differing[:4])} differ", "bold red")
    if any(each.differing for each in replay.weights):
        return Text("NOT the run: the weights differ, although no recorded figure does", style="bold red")
    return Text("nothing to compare with: the run's folder has neither metrics nor checkpoints", style="bold yellow")


def as_dict(replay: LearnerReplay) -> dict[str, Any]:
    """What `--json` prints."""
    return {"exact": replay.exact, **asdict(replay)}


def _steps(replay: LearnerReplay) -> Table:
    table = titled_table("recorded | replayed")
    table.add_column("stage", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for heading, _ in SHOWN.values():
        table.add_column(heading, justify="right")
    table.add_column("", no_wrap=True)
    for step in replay.steps:
        table.add_row(plain(step.stage), str(step.step), *(_pair(step, name) for name in SHOWN), _sameness(step))
    return table


def _pair(step: StepReplay, name: str) -> Text:
    how = SHOWN[name][1]
    one, other = step.recorded.get(name), step.replayed.get(name)
    told = [("–" if value is None else format(value, how)) for value in (one, other)]
    if one == other:
        return Text(told[1])
    return Text(" | ".join(told), style="bold" if step.recorded else "")


def _sameness(step: StepReplay) -> Text:
    if not step.recorded:
        return Text("not recorded", style="dim")
    return Text("differs", style="yellow") if step.differing else Text("same", style="green")


def _weights(comparisons: list[WeightsComparison]) -> Table:
    table = titled_table("weights at the end of stages")
    for name in ("stage", "tensors", "differing", "largest difference"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for each in comparisons:
        table.add_row(plain(each.stage), str(each.tensors), str(len(each.differing)), f"{each.largest_difference:.3g}")
    return table
