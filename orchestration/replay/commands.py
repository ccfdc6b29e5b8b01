"""`greenroom replay learner|environment|schedule|trajectory`.

Exit codes: 0 done, and nothing differs that should not; 1 something differs, or the archive is damaged; 2 the input is
not usable.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestration.archive.commands import ArchivePath, Where, usable_input
from orchestration.archive.selection import parse_condition, select
from orchestration.engine_environment import host_engine_here
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe, validate_recipe
from orchestration.replay.recorded_run import RecordedRun
from orchestration.run_folder import RECIPE_FILE
from orchestration.side_by_side import usable_cores
from orchestration.terminal import AsJson, Jobs, console, ending_cleanly, run_interruptibly, told

app = typer.Typer(no_args_is_help=True, help="Replay stored trajectories: to learn, to run their calls, to schedule.")

RecipeOption = Annotated[Path | None, typer.Option(help="A recipe (default: the run's own).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=VALUE", help="Change one setting of it; repeatable.")
]
Stages = Annotated[str | None, typer.Option(help="Only these stages: a,b.")]


def chosen_recipe(run: RecordedRun, recipe: Path | None, overrides: list[str] | None) -> Recipe:
    """The recipe that was asked for. Raises `RecipeError`."""
    if recipe is not None:
        return load_recipe(recipe, overrides)
    run.required_recipe()
    return load_recipe(run.folder / RECIPE_FILE, overrides)


def names_in(text: str | None) -> list[str] | None:
    """`a,b` as a list; None stays None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def with_objective(recipe: Recipe, name: str | None) -> Recipe:
    """The recipe with the named objective, and its resampling, in each stage of reinforcement; None leaves it as it is.

    Raises `RecipeError` for a name that there is not.
    """
    if name is None:
        return recipe
    data = recipe.model_dump(mode="json", exclude_none=True)
    for stage in data["stages"].values():
        if stage["kind"] == "reinforce":
            stage["objective"] = {"name": name}
            del stage["resampling"]["rule"]  # the objective says
    return validate_recipe(data, f"--objective {name}")


@app.command()
def learner(
    archive: ArchivePath,
    recipe: RecipeOption = None,
    overrides: Overrides = None,
    objective: Annotated[str | None, typer.Option(help="Learn with this objective instead, in each stage.")] = None,
    stages: Stages = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Model to start from (default: what the run's stage began with).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the checkpoints of the replay.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train on stored groups, without a generator and without a sandbox, and compare with the run, bit by bit."""
    from orchestration.progress import Progress
    from orchestration.replay.learner import StepReplay, replay_learner
    from orchestration.replay.learner_tables import as_dict, learner_tables

    with usable_input():
        run = RecordedRun(archive)
        used = with_objective(chosen_recipe(run, recipe, overrides), objective)
        with Progress(stream=sys.stderr) as progress:

            def told(step: StepReplay) -> None:
                progress.update(
                    step.step, learner_loss=step.replayed.get("learner_loss"), differing=len(step.differing)
                )

            found = replay_learner(
                run, used, stages=names_in(stages), start=start, out=out, on_stage=progress.start_stage, on_step=told
            )
    if as_json:
        print(json.dumps(as_dict(found)))
    else:
        shown = Console()
        for part in learner_tables(found):
            shown.print(part)
    raise typer.Exit(1 if found.same_recipe and not found.exact else 0)


@app.command()
def environment(
    archive: ArchivePath,
    where: Where = None,
    memory_mib: Annotated[
        float | None, typer.Option("--memory", min=16, max=1 << 20, help="Memory limit of each call, MiB.")
    ] = None,
    wall_seconds: Annotated[float | None, typer.Option("--timeout", help="Time limit of each call, seconds.")] = None,
    image: Annotated[
        Path | None, typer.Option(help="Libraries of another image, built by `python -m env.image --libraries`.")
    ] = None,
    isolation: Annotated[str | None, typer.Option(help="zygote or jail-per-call (default: the run's).")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Calls at once; 0: as many as the cores take.")] = 0,
    examples: Annotated[int, typer.Option(min=0, help="Differences of each kind to show.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Execute every stored call again, in real sandboxes, and list what comes out differently."""
    from orchestration.progress import Progress
    from orchestration.replay.environment import replay_environment, sandbox_setting
    from orchestration.replay.environment_tables import as_dict, environment_tables, image_differences
    from orchestration.run_folder import read_sandbox_versions

    with usable_input():
        run = RecordedRun(archive)
        rows = select(run.rows, [parse_condition(text) for text in where or []])
        setting = sandbox_setting(
            run.recipe,
            image=image,
            isolation=isolation,
            workers=workers,
            memory_mib=memory_mib,
            wall_seconds=wall_seconds,
        )
        recorded = read_sandbox_versions(run.folder)
        other = image_differences(recorded, setting.image.versions())
        calls = sum(row.calls for row in rows)
        with Progress(stream=sys.stderr) as progress:
            progress.start_stage("calls", calls)
            found = run_interruptibly(
                replay_environment(run.archive.trajectories(rows), setting, on_call=progress.update)
            )
    if as_json:
        print(json.dumps(as_dict(found, other)))
    else:
        shown = Console()
        for part in environment_tables(found, other, recorded is not None, examples):
            shown.print(part)
    raise typer.Exit(1 if found.unexpected or other else 0)


@app.command()
def schedule(
    archive: ArchivePath,
    calibration: Annotated[
        Path | None, typer.Option(help="What `greenroom calibrate` has written (default: the recipe's cost model).")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Which stage (default: the first one of reinforcement).")] = None,
    strategies: Annotated[str | None, typer.Option(help="a,b or all (default: the run's own).")] = None,
    engines: Annotated[int | None, typer.Option(min=1, help="Engines (default: as many as the run had).")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="KV cache of each engine, tokens.")] = None,
    overrides: Overrides = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, help="How much longer an engine's step takes than calibrated (default: fitted)."),
    ] = None,
    repeats: Annotated[
        list[Path] | None, typer.Option("--repeat", help="Another run of the same recipe, for the spread; repeatable.")
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a stored stage's rollouts under any strategy and cluster, next to what the run took."""
    from orchestration.rehearsing import RehearsalFailed, rehearse_all
    from orchestration.replay.schedule import Machine, replay_schedule
    from orchestration.replay.schedule_tables import as_dict, schedule_tables
    from orchestration.simulate import calibrated, chosen_strategies, rescaled

    with usable_input(), ending_cleanly(), told("the simulation failed", RehearsalFailed):
        run = RecordedRun(archive)
        changes = [*(overrides or []), *([] if kv_tokens is None else [f"generators.engine.kv_tokens={kv_tokens}"])]
        recipe = rescaled(calibrated(chosen_recipe(run, None, changes), calibration), engines)
        stored = list(run.reinforced(recipe))
        if not stored:
            raise RecipeError("the archive holds no rollouts of a stage of reinforcement")
        found = replay_schedule(
            run,
            recipe,
            stage or stored[0],
            strategies=chosen_strategies(strategies, recipe),
            machine=None if load is None else Machine(load=load, overhead_s=0.0, fitted_steps=0),
            repeats=[RecordedRun(path) for path in repeats or []],
            rehearsing=partial(rehearse_all, jobs=jobs or usable_cores(), out=console),
        )
    figures = as_dict(found)
    if as_json:
        print(json.dumps(figures))
    else:
        shown = Console()
        for part in schedule_tables(found, shown.width):
            shown.print(part)
    raise typer.Exit(0 if figures["good"] else 1)


@app.command()
def trajectory(
    archive: ArchivePath,
    name: Annotated[str, typer.Argument(metavar="ID", help="Which trajectory; `greenroom show` lists them.")],
    turn: Annotated[
        int | None, typer.Option("--from-turn", min=0, help="Sample anew from this model turn on, with a real engine.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Whose weights: a stage's name, or a folder (default: those before its stage).")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Default: that of its stage.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many continuations.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the continuations.")] = 0,
    with_tokens: Annotated[bool, typer.Option("--tokens", help="Every token on a line.")] = False,
    as_json: AsJson = False,
) -> None:
    """Step through one trajectory; or branch off at a turn, with another checkpoint or temperature."""
    if turn is not None:
        host_engine_here()
    elif checkpoint is not None or temperature is not None:
        raise RecipeError("--checkpoint and --temperature are for a branch; say where it begins with --from-turn")
    from actors.engines.engine import EngineFailed
    from orchestration.archive.export import columns, json_line
    from orchestration.archive.source import decode_as_numbers, load_decode
    from orchestration.archive.terminal import Browser
    from orchestration.replay.branch_view import branch_views
    from orchestration.replay.branching import branched, branching_of

    with usable_input():
        run = RecordedRun(archive)
        rows = [row for row in run.rows if row.id == name]
        if not rows:
            raise RecipeError(f"the archive holds no trajectory {name!r}; `greenroom show` lists their ids")
        decode = load_decode(run.archive.folder, None) or decode_as_numbers
        shown = Console()
        if turn is None:
            browser = Browser(run.archive, run.rows, decode, console=shown, page_size=20, ask=shown.input)
            if as_json:
                print(json_line(columns(run.archive.read(rows[0]), decode)), end="")
            elif sys.stdin.isatty() and shown.is_terminal and not with_tokens:
                browser.step_through(rows[0])
            else:
                browser.show_whole(rows[0], with_tokens=with_tokens)
            return
        stored = run.archive.read(rows[0])
        asked = branching_of(
            run, stored, turn=turn, checkpoint=checkpoint, temperature=temperature, samples=samples, seed=seed
        )
        try:
            branches = run_interruptibly(branched(stored, asked))
        except (EngineFailed, ValueError) as error:  # of the history, or of weights that don't fit it
            raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps({"stored": columns(stored, decode), "branches": [columns(each, decode) for each in branches]}))
        return
    sampled_by = f"{asked.model} at temperature {asked.branching.temperature:g}"
    for part in branch_views(stored, branches, turn, decode, sampled_by):
        shown.print(part)
