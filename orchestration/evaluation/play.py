"""Plays what an evaluation lacks, on a local model or on a server."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actors.system.actor import ActorError
from actors.system.stage import ActorStartFailed
from orchestration.evaluation.answers import Answer, AnswerFile, AnswerKey, Wanted
from orchestration.evaluation.benchmarks import Benchmark, Settings, Style
from orchestration.preflight import longest_sequence, untold_of_tools
from orchestration.recipe import RecipeError
from orchestration.terminal import console, run_interruptibly, told


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that is played by actors of our own."""

    path: Path
    """A folder in Hugging Face format."""
    engine: tuple[str, ...] = ()
    """Overrides of `generators.engine`, such as `dtype=float32`."""
    generators: int = 1
    gpus: float = 0
    """Of each generator; 0: on the CPU."""
    instructions: bool | None = None
    opening: str | None = None
    """As of `PromptOptions`; None: as the model was trained, or the benchmark's own."""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model behind a URL."""

    url: str
    name: str | None = None
    """None: the only one that the server has."""

    def __str__(self) -> str:
        return f"{self.url} {self.name or ''}".strip()


def check_settings(name: str, settings: Settings, model: LocalModel | ServedModel) -> None:
    """Raise `RecipeError` for settings that make no sense, or that the model can't do."""
    if settings.temperature == 0 and settings.samples > 1:
        raise RecipeError(f"{name}: {settings.samples} samples at temperature 0 are all the same; give --samples 1")
    if isinstance(model, LocalModel) and settings.max_tokens > (longest := longest_sequence(model.path)):
        raise RecipeError(
            f"{name}: {settings.max_tokens} tokens are more than {model} takes; give --max-tokens {longest}"
        )


def play_missing(
    chosen: Sequence[tuple[Benchmark, Settings]],
    file: AnswerFile,
    folder: Path,
    model: LocalModel | ServedModel,
    seed: int,
) -> None:
    """Play the answers that a file lacks, with a progress display; what fails ends the command."""
    missing = file.missing(chosen)
    wanted = sum(len(benchmark.problems) * settings.samples for benchmark, settings in chosen)
    console.print(
        f"{wanted} answers, {wanted - len(missing)} of them there already; folder: {folder}",
        soft_wrap=True,
        highlight=False,
    )
    if not missing:
        return
    with told("the evaluation failed", ActorError, ActorStartFailed), _progress() as progress:
        task = progress.add_task("answers", total=len(missing))
        right = Counter[bool]()

        def keep(answer: Answer) -> None:
            file.add(answer)
            right[answer.correct] += 1
            progress.update(task, advance=1, description=f"answers ({right[True]} of {right.total()} right)")

        if isinstance(model, ServedModel):
            run_interruptibly(_on_server(model, seed, missing, keep))
        else:
            _locally(model, seed, missing, folder, keep)


def judge_missing(
    answers: Sequence[Answer], folder: Path, baseline: Mapping[str, str], url: str, name: str | None
) -> list[Answer]:
    """All answers, those that have a baseline with a judge's score; judges those that nobody has judged yet.

    One that could not be judged has failed.
    """
    from orchestration.evaluation.judge import Judge, Judgement, JudgementFile

    file = JudgementFile(folder)
    missing = file.missing(answer for answer in answers if answer.problem in baseline)
    key = os.environ.get("JUDGE_API_KEY") or os.environ.get("OPENAI_API_KEY", "none")
    failed: dict[AnswerKey, str] = {}
    if missing:
        with _progress() as progress:
            task = progress.add_task("judgements", total=len(missing))

            def keep(judgement: Judgement) -> None:
                file.add(judgement)
                progress.update(task, advance=1)

            failed = run_interruptibly(Judge(url, name, key).compare(missing, baseline, keep))
    return [file.judged(answer, failed.get(answer.key)) for answer in answers]


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


async def _on_server(model: ServedModel, seed: int, wanted: Sequence[Wanted], keep: Callable[[Answer], None]) -> None:
    from orchestration.evaluation.server import Server

    await Server(model.url, model.name, os.environ.get("OPENAI_API_KEY", "none"), seed=seed).play(wanted, keep)


def _locally(
    model: LocalModel, seed: int, wanted: Sequence[Wanted], folder: Path, keep: Callable[[Answer], None]
) -> None:
    """One cast for each style: its prompts differ."""
    from actors.tokenizer import load_chat_format
    from orchestration.evaluation.local import check_local, manner_of, play_locally, prompts_that_fit, recipe_for

    by_style: dict[Style, list[Wanted]] = defaultdict(list)
    for each in wanted:
        by_style[each.benchmark.style].append(each)
    casts = []
    for style, group in by_style.items():
        manner = manner_of(model.path, style, model.instructions, model.opening)
        longest = max(each.settings.max_tokens for each in group)
        recipe = recipe_for(
            model.path,
            manner,
            longest,
            engine=model.engine,
            generators=model.generators,
            gpus=model.gpus,
            seed=seed,
        )
        check_local(recipe)
        if manner.trained is not None:
            console.print(f"prompt and tools as in {manner.trained.recipe}", soft_wrap=True, highlight=False)
        chat = load_chat_format(str(model.path), manner.prompt)
        told_too_little = untold_of_tools(model.path, chat, manner.limits(group[0]).tools)
        if manner.trained is None and told_too_little:
            console.print(told_too_little, soft_wrap=True, highlight=False, markup=False)
        fitting = prompts_that_fit(group, chat, manner, keep)
        if fitting:
            casts.append((recipe, manner, chat, fitting))

    async def all_of_them() -> None:
        for recipe, manner, chat, group in casts:
            await play_locally(recipe, manner, chat, group, folder, keep)

    run_interruptibly(all_of_them())
