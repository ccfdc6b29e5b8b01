"""`greenroom evaluate`."""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestration.evaluation.answers import Answer, AnswerFile
from orchestration.evaluation.benchmarks import Benchmark, Settings, Style, load_benchmark
from orchestration.recipe import RecipeError
from orchestration.terminal import AsJson, console, run_interruptibly


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
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; an evaluation that was interrupted there goes on. Default: by the model's name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: avg@k, pass@k, maj@k with intervals; a table, JSON, a page with every answer."""
    from orchestration.evaluation.page import write_page
    from orchestration.evaluation.summary import summarise, table
    from orchestration.preflight import longest_sequence
    from orchestration.run_folder import write_json

    if (model is None) == (server is None):
        raise RecipeError("give either --model (a folder) or --server (a URL)")
    paths = _pairs(data, "--data")
    names = list(dict.fromkeys(name.strip() for name in on.split(",") if name.strip()))
    stray = [name for name in paths if name not in names]
    if stray:
        raise RecipeError(
            f"--data names {', '.join(stray)}, which --on does not; benchmarks asked for: {', '.join(names)}"
        )
    chosen = []
    for name in names:
        benchmark = load_benchmark(name, paths.get(name, ""), limit)
        given = {"samples": samples, "temperature": temperature, "max_turns": max_turns, "max_tokens": max_tokens}
        settings = benchmark.settings._replace(**{key: value for key, value in given.items() if value is not None})
        if settings.temperature == 0 and settings.samples > 1:
            raise RecipeError(f"{name}: {settings.samples} samples at temperature 0 are all the same; give --samples 1")
        if model is not None and settings.max_tokens > (longest := longest_sequence(model)):
            raise RecipeError(
                f"{name}: {settings.max_tokens} tokens are more than {model} takes; give --max-tokens {longest}"
            )
        chosen.append((benchmark, settings))
    folder = out or Path("runs") / "evaluations" / (model.resolve().name if model else _host(str(server)))
    described: dict[str, Any] = {
        "model": str(model) if model else f"{server} {served_model or ''}".strip(),
        "seed": seed,
    }
    file = AnswerFile(folder, described | {each.name: settings._asdict() for each, settings in chosen})
    wanted = sum(len(each.problems) * settings.samples for each, settings in chosen)
    there = sum(key[0] in names for key in file.answers)
    console.print(f"{wanted} answers, {there} of them there already; folder: {folder}", soft_wrap=True)
    play_missing(
        chosen,
        file,
        folder,
        model=model,
        engine=engine,
        generators=generators,
        gpus=gpus,
        server=server,
        served_model=served_model,
        seed=seed,
    )
    asked = {(each.name, problem.id) for each, _ in chosen for problem in each.problems}
    answers = [answer for answer in file.answers.values() if (answer.benchmark, answer.problem) in asked]
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
        out_console.print(table(summaries))
        out_console.print(f"page: {page}")


def play_missing(
    chosen: Sequence[tuple[Benchmark, Settings]],
    file: AnswerFile,
    folder: Path,
    *,
    model: Path | None = None,
    engine: list[str] | None = None,
    generators: int = 1,
    gpus: float = 0,
    server: str | None = None,
    served_model: str | None = None,
    seed: int = 0,
) -> None:
    """Play the answers that a file lacks, on a local model or a server, with a progress display."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    missing = sum(
        len(file.missing(benchmark.name, problem.id, settings.samples))
        for benchmark, settings in chosen
        for problem in benchmark.problems
    )
    if not missing:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("answers", total=missing)
        right = Counter[bool]()

        def advance(answer: Answer) -> None:
            right[answer.correct] += 1
            progress.update(task, advance=1, description=f"answers ({right[True]} of {right.total()} right)")

        if server is not None:
            run_interruptibly(_on_server(server, served_model, seed, chosen, file, advance))
        else:
            assert model is not None, "there is a model or a server"
            _locally(chosen, file, folder, model, engine, generators, gpus, seed, advance)


async def _on_server(
    url: str,
    name: str | None,
    seed: int,
    chosen: Sequence[tuple[Benchmark, Settings]],
    file: AnswerFile,
    advance: Callable[[Answer], None],
) -> None:
    from orchestration.evaluation.server import Server

    await Server(url, name, os.environ.get("OPENAI_API_KEY", "none"), seed=seed).play(chosen, file, advance)


def _locally(
    chosen: Sequence[tuple[Benchmark, Settings]],
    file: AnswerFile,
    folder: Path,
    model: Path,
    engine: list[str] | None,
    generators: int,
    gpus: float,
    seed: int,
    advance: Callable[[Answer], None],
) -> None:
    """One cast for each style: its prompts differ."""
    from orchestration.evaluation.local import check_local, play_locally, recipe_for

    by_style: dict[Style, list[tuple[Benchmark, Settings]]] = defaultdict(list)
    for benchmark, settings in chosen:
        if any(file.missing(benchmark.name, problem.id, settings.samples) for problem in benchmark.problems):
            by_style[benchmark.style].append((benchmark, settings))
    options = {key: _value(value) for key, value in _pairs(engine, "--engine").items()}
    recipes = {
        style: recipe_for(
            model,
            style,
            max(settings.max_tokens for _, settings in group),
            engine=options,
            generators=generators,
            gpus=gpus,
            seed=seed,
        )
        for style, group in by_style.items()
    }
    for recipe in recipes.values():
        check_local(recipe)

    async def all_of_them() -> None:
        for style, group in by_style.items():
            await play_locally(recipes[style], group, file, folder, advance)

    run_interruptibly(all_of_them())


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not equals or not value:
            raise RecipeError(f"{option} {each!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _host(url: str) -> str:
    from urllib.parse import urlsplit

    return (urlsplit(url).netloc or url).replace(":", "-").replace("/", "-")
