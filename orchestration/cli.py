"""The `greenroom` command.

Exit codes: 0 done, 1 the run failed, 2 the input is not usable (a recipe, an option, this machine), 130 interrupted.
"""

from __future__ import annotations

import json
import locale
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from actors.system.actor import ActorError
from actors.system.stage import ActorStartFailed
from env.image import ImageIncomplete
from orchestration import drill_commands
from orchestration.archive import commands as archive_commands
from orchestration.bench import commands as bench_commands
from orchestration.chat import commands as chat_commands
from orchestration.data import commands as data_commands
from orchestration.data.rows import DataError
from orchestration.engine_environment import host_engine_here
from orchestration.evaluation import commands as evaluation_commands
from orchestration.metrics import METRICS_FILE
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.replay import commands as replay_commands
from orchestration.run_folder import RECIPE_FILE, held
from orchestration.serve_tools import serve_tools
from orchestration.side_by_side import WorkerLost, usable_cores
from orchestration.software import software_versions
from orchestration.terminal import (
    AsJson,
    Jobs,
    console,
    ending_cleanly,
    have_standard_streams,
    literal,
    progress_stream,
    run_interruptibly,
    told,
)
from policies.chat_format import TemplateUnusable

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(bench_commands.app, name="bench")
app.add_typer(archive_commands.app, name="archive")
app.add_typer(replay_commands.app, name="replay")
app.command()(archive_commands.show)
app.command()(archive_commands.analyse)
app.add_typer(data_commands.app, name="data")
app.command()(evaluation_commands.evaluate)
app.command()(chat_commands.chat)
app.command("serve-tools")(serve_tools)
app.command()(drill_commands.drill)


def _show_version(asked: bool) -> None:
    if asked:
        print("\n".join(f"{name} {version}" for name, version in software_versions().items()))
        raise typer.Exit


@app.callback()
def greenroom(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None: ...


RecipePath = Annotated[Path, typer.Argument(help="A recipe: a TOML file, such as recipes/quickstart.toml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=VALUE", help="Change one setting; repeatable.")
]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs' folders are made.")]


@app.command()
def train(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe: a TOML file, such as recipes/quickstart.toml; not with --resume.")
    ] = None,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that ended early."),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="As --set deterministic=true: same recipe, same weights.")
    ] = False,
    kill_at: Annotated[
        str | None,
        typer.Option(metavar="PHASE[:N]", help="For drills: kill the run at a phase (docs/resuming.md)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would start, start nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train: every stage of a recipe, with an evaluation after each. Results go to RUNS/NAME/."""
    from orchestration.data.prepare import check_data
    from orchestration.preflight import check, show
    from orchestration.resume import find_run, recipe_of
    from orchestration.training_run import run_training

    resumed = None if resume is None else find_run(resume, runs)
    source = resumed / RECIPE_FILE if recipe is None and resumed is not None else recipe
    if source is None or (recipe is None and deterministic):
        raise RecipeError(
            "no recipe; give one, such as recipes/quickstart.toml (or --resume RUN, without --deterministic)"
        )
    _check_phase(kill_at)
    given = load_recipe(source, [*(overrides or []), *(["deterministic=true"] if deterministic else [])])
    loaded = given if resumed is None else recipe_of(resumed, given)
    if dry_run and loaded.hardware is not None:
        _show_sizing(loaded, as_json)
        return
    planned = check(loaded, runs)
    folder = resumed or Path(planned.folder)
    if dry_run:
        if resumed is None:
            check_data(loaded, lambda line: console.print(literal(line), soft_wrap=True))
        planned = replace(planned, folder=str(folder))
        if as_json:
            print(json.dumps(planned.as_dict()))
        else:
            show(planned, Console())
        return
    try:
        with held(folder):
            work = run_training(
                loaded, folder, resumed=resumed is not None, kill_at=kill_at, shown_on=progress_stream(as_json)
            )
            summary = run_interruptibly(work)
    except (ActorError, ActorStartFailed, OSError) as failure:
        # A `CannotGoOn` is a sentence; any other text may end with the traceback from an actor's process.
        console.print(f"[bold red]the run failed:[/] {literal(str(failure).strip())}", soft_wrap=True)
        if (folder / RECIPE_FILE).is_file():
            console.print(
                literal(f"what was reached is in {folder}; what the actors wrote is in {folder / 'logs'}"),
                soft_wrap=True,
            )
            command = f"greenroom train --resume {shlex.quote(str(folder))}"
            console.print(f"go on from the last checkpoint with: {literal(command)}", soft_wrap=True)
        raise SystemExit(1) from None
    if as_json:
        print(json.dumps(summary))


def _check_phase(kill_at: str | None) -> None:
    from actors.system.kill_point import kill_variable

    try:
        if kill_at is not None:
            kill_variable(kill_at)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def _show_sizing(loaded: Recipe, as_json: bool) -> None:
    from orchestration import sizing

    sizings = sizing.size_stages(loaded)
    if as_json:
        print(json.dumps(sizing.as_dict(loaded, sizings)))
    else:
        sizing.show(loaded, sizings, Console())


Stage = Annotated[str | None, typer.Option(help="Which stage; by default the first one of reinforcement.")]


@app.command()
def simulate(
    recipe: RecipePath,
    overrides: Overrides = None,
    strategies: Annotated[
        str | None, typer.Option(help="Strategies to compare: a,b or all; by default the recipe's own.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="What `greenroom calibrate` has written; by default the recipe's cost model.")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(help="What `greenroom bench tools --json` printed: says how many environment cores are needed."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Engines, one on each GPU; by default as in the recipe.")] = None,
    workload: Annotated[
        Path | None,
        typer.Option(metavar="ARCHIVE", help="Stored rollouts (a run's folder) to take lengths, turns and calls from."),
    ] = None,
    workload_stage: Annotated[
        str | None, typer.Option(help="Which of the archive's stages; by default the one of the same name.")
    ] = None,
    stage: Stage = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to simulate.")] = 1,
    explore: Annotated[
        int | None, typer.Option(help="A seed: actors that are ready at the same moment run in an order drawn from it.")
    ] = None,
    events: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Print these events of the trace, and stop after the last.")
    ] = None,
    page: Annotated[Path, typer.Option(help="Folder for the HTML page.")] = Path("runs/simulations"),
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Rehearse one stage of a recipe on a virtual clock, under one or more strategies, and compare them."""
    from orchestration import simulate as simulation
    from orchestration.archived_workload import workload_for
    from orchestration.environment_sizing import service_times
    from orchestration.rehearsing import RehearsalFailed, rehearse_all
    from orchestration.simulation_page import write_page

    loaded = simulation.rescaled(load_recipe(recipe, overrides), gpus)
    loaded = simulation.calibrated(loaded, calibration)
    name = stage or simulation.first_stage(loaded)
    names = simulation.chosen_strategies(strategies, loaded)
    script = None if workload is None else workload_for(loaded, name, workload, workload_stage)
    chosen = simulation.settings(loaded, stage=name, strategies=names, steps=steps, explore=explore, workload=script)
    service = None if tools is None else service_times(tools)
    with ending_cleanly(), told("the simulation failed", RehearsalFailed, WorkerLost):
        if events is not None:
            simulation.print_events(chosen[0], events)
            return
        found = rehearse_all(chosen, jobs=jobs or usable_cores(), out=console)
        sizing = None if service is None else simulation.environment_cores(loaded, service, found[0])
    path = write_page(simulation.page_path(page, loaded, name), loaded, name, found)
    if as_json:
        cores = {} if sizing is None else {"environment_cores": sizing.model_dump()}
        print(json.dumps(simulation.as_dict(loaded, name, found) | cores | {"page": str(path)}))
        return
    out = Console()
    simulation.show(loaded, name, found, out)
    if sizing is not None:
        simulation.show_cores(sizing, out)
    out.print(f"page: {path}")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Write a run's report.html anew."""
    from orchestration.report import write_report

    if not any((run / name).is_file() for name in (RECIPE_FILE, METRICS_FILE)):
        raise RecipeError(f"no run at {run}; give the folder of a run, such as runs/quickstart")
    print(write_report(run))


@app.command()
def calibrate(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Where the cost model is written.")] = Path("calibration.json"),
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is measured; medians count.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's engine and fit the simulator's cost model to it."""
    host_engine_here()
    from actors.engines.engine import EngineFailed

    loaded = load_recipe(recipe, overrides)
    with told("the engine failed", EngineFailed):
        found = run_interruptibly(_calibrate(loaded, repeats))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(found.model_dump_json(indent=2))
    if as_json:
        print(found.model_dump_json())
        return
    cost = found.cost
    print(
        f"a step: {cost.base * 1e3:.3f} ms + {cost.sequence * 1e6:.1f} us per sequence + "
        f"{cost.context_token * 1e9:.1f} ns per token of context + {cost.prefill_token * 1e6:.2f} us per prompt token "
        f"+ {cost.prefill_pair * 1e9:.2f} ns per prompt token and token that it attends to"
    )
    print(
        f"error: {found.fit.median:.1%} median, {found.fit.worst:.1%} worst; on mixtures it has not seen "
        f"{found.held_out.median:.1%} and {found.held_out.worst:.1%}; repeats differ by {found.repeat_spread:.1%}"
    )
    print(f"{found.limits.kv_blocks} KV blocks of {found.limits.block_tokens} tokens; written to {out}")


async def _calibrate(recipe: Recipe, repeats: int) -> Any:
    import tempfile

    from orchestration.calibrate import calibrate as measure
    from orchestration.tiny_model import write_scratch_model

    with tempfile.TemporaryDirectory() as folder:
        model = recipe.model.path or write_scratch_model(recipe.model, recipe.seed, Path(folder))
        return await measure(
            model=model,
            options=recipe.generators.engine,
            threads=recipe.generators.threads,
            repeats=repeats,
            seed=recipe.seed,
            say=console.print,
        )


def main() -> None:
    """Entry point of the console script: usage errors become one clear message."""
    have_standard_streams()
    try:
        _check_encoding()
        app(standalone_mode=True)
    except (RecipeError, DataError, TemplateUnusable, ImageIncomplete) as error:
        console.print(f"[bold red]error:[/] {literal(str(error))}", soft_wrap=True)
        raise SystemExit(2) from None


def _check_encoding() -> None:
    """Files are UTF-8, ours and those of libraries, and Python reads them as the locale says (PEP 540)."""
    if (encoding := locale.getpreferredencoding(False).lower()) not in ("utf-8", "utf8"):
        raise RecipeError(
            f"text is {encoding} in this locale, and has to be UTF-8; set PYTHONUTF8=1, or another locale"
        )


if __name__ == "__main__":
    sys.exit(main())
