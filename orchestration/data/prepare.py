"""What a run does with its data before any actor starts: every set is read, checked and written into the run's folder.

So a run's folder holds just what it was trained on, actors read one simple form, and nothing that is wrong with a file
shows up an hour into a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.prepared import open_stream
from orchestration.data.chats import load_chats, marked, shown, write_chats
from orchestration.data.problems import Problems, leave_out, load_problems, write_problems
from orchestration.data.rows import DataError, may_be_on_the_hub
from orchestration.preflight import untold_of_tools, usable_chat_format
from orchestration.recipe import Recipe, Stage
from orchestration.run_folder import write_whole
from orchestration.tiny_model import write_tokenizer
from policies.chat_data import ChatSample, pieces_of
from policies.chat_format import ChatFormat
from policies.chat_sets import CHAT_SETS
from policies.curriculum import ProblemOptions, ProblemStream
from policies.data_options import ChatDataOptions, DatasetOptions
from policies.problem_sets import PROBLEM_SETS
from policies.stages import EvaluationOptions, FineTuningOptions
from policies.trajectory import Problem

DATA = "data"
"""Folder of a run in which its prepared files are."""
CHECKED = 50
"""So many chats of a stage are checked for a mask that agrees with the template, and for their lengths; all are when
the stage begins. And of so many problems that are made, whether their prompts fit."""

type Tell = Callable[[str], None]


def prepare_data(recipe: Recipe, model: Path, folder: Path, tell: Tell) -> Recipe:
    """The recipe with its data sets replaced by prepared files in `folder`. Files that are there already, since a run
    goes on, are used as they are.

    Args:
        model: folder with the model's tokenizer.
        tell: takes a line on each set, and an example of the chats of each SFT stage.

    Raises:
        DataError: a set can't be used.
        RecipeError, TemplateUnusable: the model's chat template can't, or it and the mask do not agree.
    """
    preparation = _Preparation(recipe, model, folder, tell)
    preparation.tools()
    stages = {name: preparation.stage(name, stage) for name, stage in recipe.stages.items()}
    return recipe.model_copy(update={"stages": stages, "evaluation": preparation.evaluation(recipe.evaluation)})


def check_data(recipe: Recipe, tell: Tell) -> None:
    """Say what `prepare_data` would, of the sets that are on this machine; those of the hub are named and not fetched.

    Raises as `prepare_data` does.
    """
    stages: dict[str, Stage] = {}
    for name, stage in recipe.stages.items():
        if isinstance(stage, FineTuningOptions):
            local = tuple(each for each in stage.data if not _is_on_the_hub(each.path or CHAT_SETS[each.name].hub))
            stages[name] = stage.model_copy(update={"data": local})
            if len(local) < len(stage.data):
                tell(f"{name}: chats of the hub are not looked at")
        else:
            stages[name] = stage.model_copy(update={"problems": _local(stage.problems, name, tell)})
    evaluation = recipe.evaluation.model_copy(
        update={"problems": _local(recipe.evaluation.problems, "evaluation", tell)}
    )
    with TemporaryDirectory() as folder:
        model = recipe.model.path
        if recipe.model.scratch is not None:
            model = Path(folder, "model")
            write_tokenizer(model, recipe.model.scratch.max_tokens)
        assert model is not None, "a recipe names one model"
        prepare_data(
            recipe.model_copy(update={"stages": stages, "evaluation": evaluation}), model, Path(folder, "data"), tell
        )


def _local(options: ProblemOptions, name: str, tell: Tell) -> ProblemOptions:
    dataset = options.dataset
    if dataset is None or dataset.name not in PROBLEM_SETS:
        return options
    if not _is_on_the_hub(dataset.path or PROBLEM_SETS[dataset.name].hub):
        return options
    tell(f"{name}: {dataset.name} is on the hub, and not looked at")
    return ProblemOptions()


def _is_on_the_hub(source: str) -> bool:
    return bool(source) and may_be_on_the_hub(source)


class _Preparation:
    """See `prepare_data`."""

    def __init__(self, recipe: Recipe, model: Path, folder: Path, tell: Tell) -> None:
        self._recipe, self._model, self._folder, self._tell = recipe, model, folder, tell

    @cached_property
    def _chat(self) -> ChatFormat:
        return usable_chat_format(self._model, self._recipe.prompt)

    def tools(self) -> None:
        """Say so if nothing tells the model of its tools. One that is made from scratch learns of them in SFT."""
        if self._recipe.model.path is None:
            return
        if told_too_little := untold_of_tools(self._model, self._chat, self._recipe.tools):
            self._tell(told_too_little)

    def stage(self, name: str, stage: Stage) -> Stage:
        """The stage with prepared files in the place of its sets."""
        path = self._folder / f"{name}.jsonl"
        if isinstance(stage, FineTuningOptions):
            if not stage.data:
                return stage
            if not path.is_file():
                self._write_chats(name, stage, path)
            return stage.model_copy(update={"data": (ChatDataOptions(path=str(path)),)})
        dataset, most = stage.problems.dataset, stage.limits.max_tokens
        if dataset is None:
            self._check_made(f"stages.{name}", stage.problems, most)
            return stage
        if not path.is_file():
            found = self._load(f"stages.{name}", dataset)
            reason = f"with a prompt of limits.max_tokens = {most} or more"
            leave_out(found, reason, lambda each: self._prompt_tokens(each) < most)
            if not found.problems:
                raise DataError(
                    f"stages.{name}.limits.max_tokens = {most}, but no prompt of its data set is shorter; raise it"
                )
            self._write_problems(path, dataset, found)
        return stage.model_copy(update={"problems": _prepared(stage.problems, path)})

    def evaluation(self, options: EvaluationOptions) -> EvaluationOptions:
        """The evaluation with a prepared file in the place of its set: held-out problems are all asked, or the run is
        refused, since nobody could compare what is left."""
        path, dataset, most = self._folder / "evaluation.jsonl", options.problems.dataset, options.limits.max_tokens
        if dataset is None:
            self._check_made("evaluation", options.problems, most)
            return options
        if not path.is_file():
            found = self._load("evaluation", dataset)
            if len(found.problems) < options.count:
                raise DataError(
                    f"evaluation.count = {options.count}, but its data set holds {len(found.problems)} problems"
                    f"{_left_out(found.left_out)}; lower it"
                )
            self._check_prompts("evaluation", found.problems[: options.count], most)
            self._write_problems(path, dataset, found)
        return options.model_copy(update={"problems": _prepared(options.problems, path)})

    def _load(self, where: str, dataset: DatasetOptions) -> Problems:
        try:
            return load_problems(dataset)
        except DataError as error:
            raise DataError(f"{where}.problems.dataset: {error}") from error

    def _check_made(self, where: str, options: ProblemOptions, most: int) -> None:
        """Problems that are made are much of a length: a few tell of all."""
        stream = ProblemStream(options, run_seed=self._recipe.seed, held_out=where == "evaluation")
        self._check_prompts(where, [stream.problem(index) for index in range(CHECKED)], most)

    def _check_prompts(self, where: str, problems: Sequence[Problem], most: int) -> None:
        for problem in problems:
            if (length := self._prompt_tokens(problem)) >= most:
                raise DataError(
                    f"{where}.limits.max_tokens = {most}, but the prompt of problem {problem.id} has {length} tokens; "
                    "raise it"
                )

    def _prompt_tokens(self, problem: Problem) -> int:
        return len(self._chat.prompt(problem.question, self._recipe.tools))

    def _write_problems(self, path: Path, dataset: DatasetOptions, found: Problems) -> None:
        self._tell(f"{path.stem}: {len(found.problems)} problems of {dataset.name}{_left_out(found.left_out)}")
        write_problems(path, found.problems)

    def _write_chats(self, name: str, stage: FineTuningOptions, path: Path) -> None:
        try:
            chats = load_chats(stage.data)
        except DataError as error:
            raise DataError(f"stages.{name}.data: {error}") from error
        self._tell(f"{name}: {len(chats.samples)} chats{_left_out(chats.left_out)}")
        self._check_lengths(name, chats.samples, stage.limits.max_tokens)
        if self._recipe.model.path is not None:
            checked = [shown(sample, self._chat) for sample in chats.samples[:CHECKED]]
            example = marked(checked[0])
            write_whole(path.with_name(f"{name}-example.txt"), example + "\n")
            self._tell(f"{name}: what is learned stands between ⟦ and ⟧:\n{example}")
        write_chats(path, chats.samples)

    def _check_lengths(self, name: str, samples: Sequence[ChatSample], most: int) -> None:
        """Chats that are too long are left out when the stage begins: a few tell how many, one that fits is enough."""

        def fits(sample: ChatSample) -> bool:
            return sum(len(piece.ids) for piece in pieces_of(sample, self._chat)) <= most

        limit = f"stages.{name}.limits.max_tokens = {most}"
        checked, others = samples[:CHECKED], samples[CHECKED:]
        too_long = sum(not fits(sample) for sample in checked)
        if too_long == len(checked) and not any(fits(sample) for sample in others):
            raise DataError(f"{limit}, but all {len(samples)} chats of the stage are longer; raise it")
        if too_long:
            self._tell(f"{name}: {too_long} of the first {len(checked)} chats are longer than {limit}")


def training_stream(run: Path, stage: str, options: ProblemOptions, run_seed: int) -> ProblemStream:
    """The training problems of a stage, as the run in that folder has posed them."""
    if options.dataset is not None:
        options = _prepared(options, run / DATA / f"{stage}.jsonl")
    return open_stream(options, run_seed=run_seed, held_out=False)


def _prepared(options: ProblemOptions, path: Path) -> ProblemOptions:
    return options.model_copy(update={"dataset": DatasetOptions(path=str(path))})


def _left_out(counts: Mapping[str, int]) -> str:
    return "".join(f"; {count} {reason}" for reason, count in counts.items())
