"""`greenroom simulate`: one stage of a recipe under several strategies, side by side."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from actors.system.trace import EnoughTraced
from orchestration.calibrate import load_calibration
from orchestration.environment_sizing import Sizing, size
from orchestration.progress import format_seconds
from orchestration.recipe import Recipe, RecipeError
from orchestration.rehearsing import rehearsed
from orchestration.simulation import Rehearsal, Setting
from policies.balancing import StrategyName
from policies.scripted import Script
from policies.stages import ReinforcementOptions

STRATEGIES: tuple[str, ...] = get_args(StrategyName)


def chosen_strategies(text: str | None, recipe: Recipe) -> list[str]:
    """`a,b`, `all`, or None for the recipe's own. Raises `RecipeError` for a strategy that there is not."""
    if text is None:
        return [recipe.balancer.strategy]
    if text == "all":
        return list(STRATEGIES)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STRATEGIES:
            raise RecipeError(f"--strategies: there is no strategy {name!r}; choose of {', '.join(STRATEGIES)}, or all")
    return names


def first_stage(recipe: Recipe) -> str:
    """The first stage that can be simulated. Raises `RecipeError` if there is none."""
    for name, stage in recipe.stages.items():
        if isinstance(stage, ReinforcementOptions):
            return name
    raise RecipeError("the recipe has no stage of reinforcement; only these are simulated")


def rescaled(recipe: Recipe, engines: int | None) -> Recipe:
    """The recipe with another number of engines, one on each GPU; None leaves it as it is."""
    if engines is None:
        return recipe
    if engines < 1:
        raise RecipeError(f"--gpus {engines}: at least one GPU is needed")
    share = engines / recipe.generators.count
    cost = recipe.simulation.learner
    learner = cost.model_copy(update={"flops": cost.flops * share})
    return recipe.model_copy(
        update={
            "generators": recipe.generators.model_copy(update={"count": engines}),
            "simulation": recipe.simulation.model_copy(update={"learner": learner}),
        }
    )


def calibrated(recipe: Recipe, path: Path | None) -> Recipe:
    """The recipe with the engine's cost model of a calibration; None leaves it as it is.

    Raises `RecipeError` if the file is none.
    """
    if path is None:
        return recipe
    try:
        cost = load_calibration(path).cost
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise RecipeError(
            f"--calibration {path}: {why}; give the file that `greenroom calibrate --out` has written"
        ) from error
    return recipe.model_copy(update={"simulation": recipe.simulation.model_copy(update={"cost": cost})})


def settings(
    recipe: Recipe,
    *,
    stage: str,
    strategies: list[str],
    steps: int,
    explore: int | None,
    workload: Script | None = None,
) -> list[Setting]:
    """What to rehearse: a stage under each strategy; `workload` takes the place of the recipe's own."""
    made = []
    for name in strategies:
        balancer = recipe.balancer.model_copy(update={"strategy": name})
        made.append(
            Setting(recipe=recipe, stage=stage, steps=steps, balancer=balancer, explore=explore, workload=workload)
        )
    return made


def print_events(setting: Setting, events: str) -> None:
    """Repeat a run up to an event and print the trace from another one on.

    Raises `RecipeError` for a bad range, `RehearsalFailed`.
    """
    first, _, last = events.partition(":")
    try:
        first_event, last_event = int(first), int(last) if last else None
    except ValueError:
        raise RecipeError(f"--events {events!r}: give FIRST:LAST, two numbers, or FIRST: for all that follow") from None
    repeated = replace(setting, first_event=first_event, last_event=last_event, show=print)
    with contextlib.suppress(EnoughTraced):
        rehearsed(repeated)


def as_dict(recipe: Recipe, stage: str, rehearsals: list[Rehearsal]) -> dict[str, Any]:
    """What `--json` prints; `trace_hash` is that of all strategies' traces together."""
    together = hashlib.blake2b("".join(each.trace_hash for each in rehearsals).encode(), digest_size=16).hexdigest()
    return {
        "recipe": recipe.name,
        "stage": stage,
        "engines": recipe.generators.count,
        "strategies": {
            each.strategy: each.figures
            | {"trace_hash": each.trace_hash, "events": each.events, "wall_seconds": each.wall_seconds}
            for each in rehearsals
        },
        "trace_hash": together,
        "events": sum(each.events for each in rehearsals),
        "wall_seconds": sum(each.wall_seconds for each in rehearsals),
    }


ROWS: tuple[tuple[str, str, str], ...] = (
    ("makespan_s", "makespan of a step's rollouts", "s"),
    ("lower_bound_s", "lower bound", "s"),
    ("ratio", "makespan / lower bound", "x"),
    ("idle_engine_s", "idle engine-seconds", "n"),
    ("idle_share", "idle share of engines", "%"),
    ("generator_idle_share", "the same, learning included", "%"),
    ("staleness_mean", "staleness in versions, mean", "x"),
    ("groups_too_old", "groups dropped as too old", "n"),
    ("kv_mean", "KV use, mean", "%"),
    ("kv_p99", "KV use, p99", "%"),
    ("preemptions", "preemptions", "n"),
    ("recomputed_tokens", "tokens recomputed", "n"),
    ("prefix_hit_share", "prefix hits", "%"),
    ("queue_wait_mean_s", "wait for a lease, mean", "s"),
    ("queue_wait_p99_s", "wait for a lease, p99", "s"),
    ("tail_share", "time of the last 10%", "%"),
    ("tool_calls", "tool calls", "n"),
    ("tool_latency_mean_s", "tool latency, mean", "s"),
    ("tool_latency_p99_s", "tool latency, p99", "s"),
    ("tokens_per_s", "tokens per second", "n"),
    ("step_s", "predicted step", "t"),
    ("run_s", "predicted stage", "t"),
)
"""Figure -> what it is called and how it is written."""
_STRATEGY_WIDTH = 17
"""Characters that a strategy's column takes, with its border (the longest name has 14)."""


def abreast(rehearsals: Sequence[Rehearsal], width: int) -> Iterator[tuple[Rehearsal, ...]]:
    """As many at a time as have room in `width` characters, a column each."""
    return itertools.batched(rehearsals, max(1, width // _STRATEGY_WIDTH))


def written(value: float, how: str) -> str:
    """A figure as a reader likes it."""
    match how:
        case "%":
            return f"{value:.1%}"
        case "n":
            return f"{value:,.0f}"
        case "t":
            return format_seconds(value)
        case "x":
            return f"{value:.2f}"
        case _:
            return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def show(recipe: Recipe, stage: str, rehearsals: list[Rehearsal], out: Console) -> None:
    """The comparison as a table, or as several where the screen is too narrow for all strategies beside each other."""
    options = recipe.stages[stage]
    assert isinstance(options, ReinforcementOptions), "only these are rehearsed"
    rollouts = options.prompts * options.sampled
    title = f"{recipe.name}, {stage}: {rollouts:,} rollouts on {recipe.generators.count} engines (simulated)"
    for few in abreast(rehearsals, out.width - len(max((heading for _, heading, _ in ROWS), key=len)) - 4):
        table = Table(title=title)
        table.add_column("", no_wrap=True)
        for each in few:
            table.add_column(each.strategy, justify="right", no_wrap=True)
        for name, heading, how in ROWS:
            table.add_row(heading, *[written(each.figures[name], how) for each in few])
        table.add_row("events", *[f"{each.events:,}" for each in few])
        table.add_row("simulated in", *[f"{each.wall_seconds:.1f} s" for each in few])
        table.add_row("trace", *[each.trace_hash[:12] for each in few])
        out.print(table)


def environment_cores(recipe: Recipe, service: dict[str, float], rehearsal: Rehearsal) -> Sizing:
    """The environment cores that the recipe needs, a rehearsed step's calls coming evenly over its rollouts.

    Raises `RecipeError` if the step makes no calls, or no number of cores is enough.
    """
    calls = rehearsal.figures["tool_calls"]
    if not calls:
        raise RecipeError("--tools: the rehearsed step makes no tool calls, so that no environment is needed")
    seconds = rehearsal.figures["makespan_s"] * rehearsal.figures["steps"]
    return size(service, environments=recipe.environments.count, calls_per_s=calls / seconds)


def show_cores(sizing: Sizing, out: Console) -> None:
    """The cores that environments need."""
    kinds = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in sizing.core_seconds.items())
    out.print(f"environment cores for a mean of {sizing.goal_s:g} s per call ({kinds}, equally often):")
    for what, need in (("all at once", sizing.burst), (f"{sizing.steady.calls_per_s:,.1f} a second", sizing.steady)):
        latency = need.latency
        out.print(
            f"  {need.calls:,} calls, {what}: {need.cores:,} cores "
            f"(mean {latency.mean_s:.3f} s, 99% within {latency.p99_s:.3f} s)"
        )


def page_path(folder: Path, recipe: Recipe, stage: str) -> Path:
    """Where the page of a simulation goes."""
    return folder / f"{recipe.name}-{stage}.html"
