"""What a run does with its data before any actor starts: every set is read, checked and written into the run's folder.

So a run's folder holds just what it was trained on, actors read one simple form, and nothing that is wrong with a file
shows up an hour into a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from actors.tokenizer import load_chat_format
from orchestration.data.chats import load_chats, marked, shown, write_chats
from orchestration.data.problems import load_problems, write_problems
from orchestration.recipe import Recipe, Stage
from orchestration.run_folder import write_whole
from policies.curriculum import ProblemOptions
from policies.data_options import ChatDataOptions, DatasetOptions
from policies.stages import FineTuningOptions

CHECKED = 50
"""So many chats of a stage are checked for a mask that agrees with the template; all are when the stage begins."""


def prepare_data(recipe: Recipe, folder: Path, tell: Callable[[str], None]) -> Recipe:
    """The recipe with its data sets replaced by prepared files in `folder`. Files that are there already, since a run
    goes on, are used as they are.

    Args:
        tell: takes a line on each set, and an example of the chats of each SFT stage.

    Raises:
        DataError: a set can't be used.
        TemplateUnusable: chat template and mask do not agree.
    """
    return recipe.model_copy(
        update={
            "stages": {name: _stage(recipe, name, stage, folder, tell) for name, stage in recipe.stages.items()},
            "evaluation": recipe.evaluation.model_copy(
                update={"problems": _problems(recipe.evaluation.problems, folder / "evaluation.jsonl", tell)}
            ),
        }
    )


def _stage(recipe: Recipe, name: str, stage: Stage, folder: Path, tell: Callable[[str], None]) -> Stage:
    path = folder / f"{name}.jsonl"
    if not isinstance(stage, FineTuningOptions) or not stage.data:
        return stage.model_copy(update={"problems": _problems(stage.problems, path, tell)})
    if not path.is_file():
        _write_chats(recipe, name, stage, path, tell)
    return stage.model_copy(update={"data": (ChatDataOptions(path=str(path)),)})


def _write_chats(recipe: Recipe, name: str, stage: FineTuningOptions, path: Path, tell: Callable[[str], None]) -> None:
    chats = load_chats(stage.data)
    tell(f"{name}: {len(chats.samples)} chats" + _left_out(chats.left_out))
    if recipe.model.path is not None:
        chat = load_chat_format(str(recipe.model.path), recipe.prompt)
        checked = [shown(sample, chat) for sample in chats.samples[:CHECKED]]
        example = marked(checked[0])
        write_whole(path.with_name(f"{name}-example.txt"), example + "\n")
        tell(f"{name}: what is learned stands between ⟦ and ⟧:\n{example}")
    write_chats(path, chats.samples)


def _problems(options: ProblemOptions, path: Path, tell: Callable[[str], None]) -> ProblemOptions:
    if options.dataset is None:
        return options
    if not path.is_file():
        found = load_problems(options.dataset)
        tell(f"{path.stem}: {len(found.problems)} problems of {options.dataset.name}" + _left_out(found.left_out))
        write_problems(path, found.problems)
    return options.model_copy(update={"dataset": DatasetOptions(path=str(path))})


def _left_out(counts: Mapping[str, int]) -> str:
    return "".join(f"; {count} {reason}" for reason, count in counts.items())
