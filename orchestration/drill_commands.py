"""`greenroom drill`: a run under faults; on Ray, for real, or many plans on the virtual stage."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from actors.system.actor import ActorError
from actors.system.stage import ActorStartFailed
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import held
from orchestration.side_by_side import WorkerLost, usable_cores
from orchestration.terminal import (
    AsJson,
    Jobs,
    console,
    ending_cleanly,
    literal,
    progress_stream,
    run_interruptibly,
    told,
)

if TYPE_CHECKING:
    from actors.system.actor_faults import ActorFaultPlan
    from orchestration.ray_drill import DrillReport

PROOFS = {"kill": "gone", "freeze": "stopped", "slow": "stopped", "squeeze": "killed", "fill": "full"}
UNTIL_S = 120.0
VIRTUAL_UNTIL_S = 60.0
"""About twice what the miniature takes without faults."""


def drill(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file, such as recipes/drill.toml.")] = Path(
        "recipes/drill.toml"
    ),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=VALUE", help="Change one setting; repeatable.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The fault plan (JSON); docs/faults.md.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the plan if none is given, and whom its faults hit.")] = 0,
    until: Annotated[
        float, typer.Option(min=1, max=86_400, help="A drawn plan's faults begin before so many seconds.")
    ] = UNTIL_S,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs' folders are made.")] = Path("runs"),
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Run many plans on the virtual stage, on a miniature of the recipe.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="--virtual: how many fault plans to run.")] = 100,
    first: Annotated[int, typer.Option(help="--virtual: seed of the first plan.")] = 0,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Train under faults: processes are killed, stopped, slowed, out of memory as a plan says; do the books balance?

    With --virtual, seeded plans are run on the virtual stage; one that breaks the run is shrunk and printed.
    """
    from orchestration.ray_drill import read_plan

    try:
        given = None if plan is None else read_plan(plan)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    if virtual:
        _drill_virtually(recipe, overrides, given, seeds, first, jobs or usable_cores(), as_json)
    loaded = load_recipe(recipe, overrides)
    report = _drill_on_ray(loaded, given or _drawn(loaded, seed, until), seed, runs, progress_stream(as_json))
    if as_json:
        print(json.dumps(asdict(report) | {"passed": report.passed}))
    else:
        show(report, Console())
    raise SystemExit(0 if report.passed else 1)


def _drawn(recipe: Recipe, seed: int, until: float) -> ActorFaultPlan:
    from actors.system.actor_faults import ActorFaultKind, ActorFaultPlan
    from env.cgroup_hierarchy import find_hierarchy

    names = _names(recipe.generators.count, recipe.environments.count, recipe.rollouts.count)
    names.remove("director")  # its death is the run's end
    kinds: list[ActorFaultKind] = ["kill", "kill", "freeze", "slow", "delay", "drop", "double"]
    if find_hierarchy() is not None:
        kinds.append("squeeze")
    return ActorFaultPlan.draw(seed, actors=names, until=until, kinds=kinds)


def _drill_on_ray(recipe: Recipe, plan: ActorFaultPlan, seed: int, runs: Path, shown_on: TextIO) -> DrillReport:
    from orchestration.preflight import check
    from orchestration.ray_drill import RayDrill
    from orchestration.strikes import check_plan
    from orchestration.training_run import run_training

    folder = Path(check(recipe, runs).folder)
    names = _names(recipe.generators.count, recipe.environments.count, recipe.rollouts.count)
    try:
        check_plan(plan, names, folder)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    console.print(f"the plan:\n{literal(str(plan))}", soft_wrap=True)
    exercise = RayDrill(recipe, folder, plan, seed)
    with held(folder):
        summary: dict[str, Any] = {}
        try:
            summary = run_interruptibly(run_training(recipe, folder, beside=exercise.beside, shown_on=shown_on))
        except (ActorError, ActorStartFailed, OSError) as failure:
            console.print(f"[bold red]the run failed:[/] {literal(str(failure).strip())}", soft_wrap=True)
            path = folder / "summary.json"
            summary = json.loads(path.read_text()) if path.exists() else {"reason": str(failure)}
        return exercise.report(summary)


def _drill_virtually(
    recipe: Path,
    overrides: list[str] | None,
    plan: ActorFaultPlan | None,
    seeds: int,
    first: int,
    jobs: int,
    as_json: bool,
) -> None:
    """Ends the process: 0 if all plans passed."""
    from orchestration.drill import Drill, repeat_command

    with ending_cleanly(), told("the drill failed", WorkerLost):
        training = Drill(load_recipe(recipe, overrides))
        if plan is not None:
            reason = training.fault_of(_virtual(plan, first), first)
            print(reason or "passed")
            raise SystemExit(1 if reason else 0)
        failures = training.run(
            range(first, first + seeds),
            lambda seed, reason: console.print(f"seed {seed}: {reason or 'passed'}"),
            jobs=jobs,
        )
    if as_json:
        found = [{"seed": each.seed, "reason": each.reason, "plan": each.shrunk.model_dump()} for each in failures]
        print(json.dumps({"seeds": seeds, "failures": found}))
    for each in failures:
        console.print(f"[bold red]seed {each.seed}:[/] {literal(each.reason)}\n{literal(str(each.shrunk))}")
        console.print(f"repeat it: {repeat_command(recipe, overrides or [], each)}", soft_wrap=True)
    console.print(f"{seeds - len(failures)} of {seeds} plans passed")
    raise SystemExit(1 if failures else 0)


def _virtual(plan: ActorFaultPlan, seed: int) -> ActorFaultPlan:
    """A plan as the virtual stage knows it: its faults one by one. Raises `RecipeError` for those of real processes."""
    from orchestration.drill import ENVIRONMENTS, GENERATORS, ROLLOUTS

    for fault in plan.faults:
        lacks = {"squeeze": "sandbox", "fill": "disk"}.get(fault.kind, fault.process)
        if lacks != "actor":
            raise RecipeError(f"{fault}: the virtual stage has no {lacks}; leave it out, or drill without --virtual")
    try:
        return plan.spelled_out(seed, actors=_names(GENERATORS, ENVIRONMENTS, ROLLOUTS), until=VIRTUAL_UNTIL_S)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def _names(generators: int, environments: int, rollouts: int) -> list[str]:
    """The actors that faults may hit."""
    counts = {"generator": generators, "environment": environments, "rollout": rollouts}
    names = [f"{kind}-{index}" for kind, count in counts.items() for index in range(count)]
    return [*names, "balancer", "archive", "learner", "director"]


def show(report: DrillReport, out: Console) -> None:
    """The report as a table, and what is wrong below it."""
    table = Table(title="what was hit")
    for column in ("at", "what", "pid", "proof", "recovery", "done again meanwhile"):
        table.add_column(column)
    for each in report.strikes:
        proof = f"{PROOFS.get(each.kind, 'hit')} after {each.confirmed_s or 0:.2f} s"
        proof += "".join(f", {count:g} {what}" for what, count in each.figures.items())
        recovery = each.outcome if each.recovery_s is None else f"{each.recovery_s:.1f} s"
        again = ", ".join(f"{count} {what}" for what, count in each.retried.items())
        table.add_row(
            f"{each.at_s:.1f} s",
            f"{each.kind} {each.whom}",
            str(each.pid or ""),
            proof if each.confirmed else "NOT SEEN",
            recovery,
            again,
        )
    out.print(table)
    hits = ", ".join(f"{count} x {what}" for what, count in report.hit.items())
    out.print(f"{hits or 'nothing was hit'}; {report.wall_seconds:.0f} s", soft_wrap=True)
    again = ", ".join(f"{count} {what}" for what, count in report.retried.items() if count)
    out.print(
        f"done again: {again or 'nothing'}; {report.rollouts_stored_twice} of {report.rollouts_stored} stored rollouts "
        "are further attempts",
        soft_wrap=True,
    )
    for fault in report.faults:
        out.print(f"[bold red]books:[/] {literal(fault)}", soft_wrap=True)
    if not report.finished:
        out.print(f"the run did not come to its end: {literal(report.reason)}", soft_wrap=True)
    if report.ended_as_it_must:
        out.print("as it must when its disk is full; greenroom train --resume goes on with it")
    elif report.passed:
        out.print("the run came to its end, and its books balance")
