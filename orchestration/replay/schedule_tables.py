"""A replay to the schedule on a terminal, and as figures: what would have happened, next to what did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.archive.terminal import plain, titled_table
from orchestration.replay.schedule import ScheduleReplay
from orchestration.simulate import ROWS, abreast, written
from orchestration.simulation import Rehearsal

FIGURES = (
    "idle_share",
    "kv_mean",
    "preemptions",
    "recomputed_tokens",
    "queue_wait_mean_s",
    "tool_latency_mean_s",
)
"""Those of a rehearsal that stand beside its makespans."""


def as_dict(replay: ScheduleReplay) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "stage": replay.stage,
        "load": replay.machine.load,
        "overhead_s": replay.machine.overhead_s,
        "fitted_steps": replay.machine.fitted_steps,
        "recorded": {
            "strategy": replay.recorded_strategy,
            "makespans_s": [step.makespan_s for step in replay.recorded],
            "judged_mean_s": replay.real_s,
        },
        "predicted": {
            each.strategy: {
                "makespans_s": replay.makespans(each),
                "judged_mean_s": replay.predicted_s(each),
                **{name: each.figures[name] for name in FIGURES},
            }
            for each in replay.rehearsals
        },
        "error": replay.error,
        "drift": replay.drift,
        "error_at_own_load": replay.error_at_own_load,
        "spread": replay.spread,
        "allowed": replay.allowed,
        "good": replay.error is None or abs(replay.error) <= replay.allowed,
    }


def schedule_tables(replay: ScheduleReplay, width: int) -> Iterator[RenderableType]:
    """Makespans step by step, how engines and queues fared, and what it comes to.

    Args:
        width: characters of a line; where that is too narrow for all strategies there are several tables.
    """
    for few in abreast(replay.rehearsals, width - len(_recorded(replay)) - 17):
        yield _makespans(replay, few)
    for few in abreast(replay.rehearsals, width - max(len(title) for name, title, _ in ROWS if name in FIGURES) - 4):
        yield _figures(few)
    machine = replay.machine
    where = f"fitted to the first {machine.fitted_steps} steps" if machine.fitted_steps else "as given"
    yield plain(
        f"an engine's step takes {machine.load:.2f} times what the cost model says, and a step of the run "
        f"{machine.overhead_s:.2f} s more than engines, tools and queues explain ({where})",
        "dim",
    )
    yield _verdict(replay)
    if replay.drift is not None and replay.error_at_own_load is not None:
        yield plain(
            f"in the judged steps the engines' load was {replay.drift:+.1%} against the fitted ones (the machine); "
            f"at their own load the prediction is off by {replay.error_at_own_load:+.1%}",
            "dim",
        )


def _recorded(replay: ScheduleReplay) -> str:
    return f"recorded ({replay.recorded_strategy})"


def _makespans(replay: ScheduleReplay, few: Sequence[Rehearsal]) -> Table:
    table = titled_table(f"{replay.stage}: seconds of rollouts, recorded and simulated")
    for name in ("step", _recorded(replay), *(each.strategy for each in few)):
        table.add_column(name, justify="right", no_wrap=True)
    predicted = [replay.makespans(each) for each in few]
    judged_from = replay.judged.start
    for index, step in enumerate(replay.recorded):
        fitted = index < judged_from
        row = [f"{step.makespan_s:.2f}", *(f"{each[index]:.2f}" for each in predicted)]
        table.add_row(str(step.step), *row, style="dim" if fitted else None, end_section=index == judged_from - 1)
    mean = [replay.real_s, *(replay.predicted_s(each) for each in few)]
    table.add_row("mean" if not judged_from else "mean of these", *(f"{value:.2f}" for value in mean), style="bold")
    return table


def _figures(few: Sequence[Rehearsal]) -> Table:
    table = titled_table("simulated")
    table.add_column("", no_wrap=True)
    for each in few:
        table.add_column(each.strategy, justify="right", no_wrap=True)
    for name, title, how in ROWS:
        if name in FIGURES:
            table.add_row(title, *(written(each.figures[name], how) for each in few))
    return table


def _verdict(replay: ScheduleReplay) -> Text:
    if replay.error is None:
        return Text("another cluster or strategy than the run's: nothing to judge the prediction by")
    good = abs(replay.error) <= replay.allowed
    spread = "no repeats were given" if replay.spread is None else f"repeats spread by {replay.spread:.1%}"
    mean = fmean(step.makespan_s for step in replay.recorded)
    return Text(
        f"{replay.recorded_strategy}: predicted {replay.error:+.1%} against the run (mean {mean:.2f} s; {spread}; "
        f"good within {replay.allowed:.1%})",
        style="bold green" if good else "bold red",
    )
