"""How a model is talked to: a checkpoint of a run as that run trained it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from actors.tokenizer import PromptOptions
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import RECIPE_FILE
from policies.dialogue import DialogueLimits


class AsTrained(NamedTuple):
    """What a checkpoint's run says of it."""

    prompt: PromptOptions
    limits: DialogueLimits
    """Those of the run's evaluation, with the tools that the model was trained to use."""
    recipe: Path


def as_trained(model: Path) -> AsTrained | None:
    """None if `model` is not `RUN/checkpoints/STAGE`. Raises `RecipeError` if the run's recipe can't be read."""
    folder = model.resolve()
    path = folder.parent.parent / RECIPE_FILE
    if folder.parent.name != "checkpoints" or not path.is_file():
        return None
    recipe = load_recipe(path)
    limits = DialogueLimits(**recipe.evaluation.limits.model_dump(), tools=recipe.tools)
    return AsTrained(recipe.prompt, limits, path)
