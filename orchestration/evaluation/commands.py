"""`greenroom evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestration.evaluation.answers import UNCOUNTED, Answer, AnswerFile, why_failed
from orchestration.evaluation.benchmarks import ARENA_HARD, load_benchmark
from orchestration.evaluation.play import LocalModel, ServedModel, check_settings, judge_missing, play_missing
from orchestration.recipe import RecipeError
from orchestration.terminal import AsJson, console, visible

MOST_REASONS = 3
"""Why answers failed, that are shown."""


def evaluate(
    on: Annotated[str, typer.Option("--on", help="Benchmarks, such as aime24,math500; see docs/evaluation.md.")],
    model: Annotated[Path | None, typer.Option(help="A model: a folder in Hugging Face format.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Instead of a model: an OpenAI-compatible URL, such as http://localhost:8000/v1.")
    ] = None,
    served_model: Annotated[str | None, typer.Option(help="The served model's name, if there are several.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="Where a benchmark's data is; repeatable.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples of each problem (mathematics: 16).")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Mathematics: 0.6, else 0.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Model turns (mathematics: 30, else 1).")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Tokens, prompt included on a local model (mathematics: 30000).")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many problems (bfcl: of each category).")] = None,
    generators: Annotated[int, typer.Option(min=1, help="Generator actors, for a local model.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each generator; 0: on the CPU.")] = 0,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of generators.engine, as in recipes; repeatable."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="URL", help="Of the judge of arena-hard: an OpenAI-compatible URL.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="The judge's name there, if there are several.")] = None,
    instructions: Annotated[
        bool | None,
        typer.Option("--instructions/--no-instructions", help="Put problems with the tool's instructions, or bare."),
    ] = None,
    opening: Annotated[str | None, typer.Option(help="What each answer of a local model begins with.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; an evaluation that was interrupted there goes on. Default: by the model's name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: avg@k, pass@k, maj@k with intervals; a table, JSON, a page with every answer."""
    from orchestration.evaluation.page import write_page
    from orchestration.evaluation.summary import summarise, tables
    from orchestration.run_folder import write_json

    if model is not None and server is None:
        played = LocalModel(model, tuple(engine or ()), generators, gpus, instructions, opening)
        folder = out or Path("runs") / "evaluations" / model.resolve().name
    elif server is not None and model is None:
        if instructions is not None or opening is not None:
            raise RecipeError("--instructions and --opening are for --model; a server renders its own template")
        played = ServedModel(server, served_model)
        folder = out or Path("runs") / "evaluations" / _host(server)
    else:
        raise RecipeError("give either --model (a folder) or --server (a URL)")
    paths = _pairs(data, "--data")
    names = list(dict.fromkeys(name.strip() for name in on.split(",") if name.strip()))
    stray = [name for name in paths if name not in names]
    if stray:
        raise RecipeError(
            f"--data names {', '.join(stray)}, which --on does not; benchmarks asked for: {', '.join(names)}"
        )
    if ARENA_HARD in names and judge is None:
        raise RecipeError(f"{ARENA_HARD}'s answers are compared by a judge: give --judge URL (OpenAI-compatible)")
    if judge is not None and ARENA_HARD not in names:
        raise RecipeError(f"--judge is for {ARENA_HARD}, which --on does not name")
    chosen = []
    for name in names:
        benchmark = load_benchmark(name, paths.get(name, ""), limit)
        given = {"samples": samples, "temperature": temperature, "max_turns": max_turns, "max_tokens": max_tokens}
        settings = benchmark.settings._replace(**{key: value for key, value in given.items() if value is not None})
        check_settings(name, settings, played)
        chosen.append((benchmark, settings))
    described: dict[str, Any] = {"model": str(played), "seed": seed}
    baseline = {problem: answer for benchmark, _ in chosen for problem, answer in benchmark.baseline.items()}
    if judge is not None:
        described["judge"] = f"{judge} {judge_model or ''}".strip()
    if model is not None:
        described |= {"instructions": instructions, "opening": opening}
    file = AnswerFile(folder, described | {each.name: settings._asdict() for each, settings in chosen})
    play_missing(chosen, file, folder, played, seed)
    asked = {(each.name, problem.id) for each, _ in chosen for problem in each.problems}
    answers = [answer for answer in file.answers.values() if (answer.benchmark, answer.problem) in asked]
    if judge is not None:
        answers = judge_missing(answers, folder, baseline, judge, judge_model)
    summaries = [
        summarise(each.name, answers, settings.samples, values=each.style == "reasoning") for each, settings in chosen
    ]
    figures = {"settings": described, "benchmarks": [each.as_dict() for each in summaries]}
    write_json(folder / "summary.json", figures)
    page = write_page(folder / "report.html", f"Evaluation of {described['model']}", described, summaries, answers)
    if as_json:
        print(json.dumps(figures))
    else:
        out_console = Console()
        for table in tables(summaries):
            out_console.print(table)
        out_console.print(f"page: {page}")
    uncounted = sum(UNCOUNTED in answer.figures for answer in answers)
    if uncounted:
        console.print(
            f"the server did not say how many tokens {uncounted} answers have (usage): figures lack those, and "
            "--max-tokens held for each turn, not for all of them",
            soft_wrap=True,
        )
    end_with_failures(answers)


def end_with_failures(answers: Sequence[Answer]) -> None:
    """Say how many answers failed, and why. Raises `typer.Exit` with code 1 if any did."""
    failed = why_failed(answers)
    if not failed:
        return
    console.print(f"{failed.total()} answers failed; they count as wrong. The same command plays them again:")
    for reason, count in failed.most_common(MOST_REASONS):
        console.print(visible(f"  {count} x {reason}"), soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(1)


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not equals or not value:
            raise RecipeError(f"{option} {each!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _host(url: str) -> str:
    from urllib.parse import urlsplit

    return (urlsplit(url).netloc or url).replace(":", "-").replace("/", "-")
