"""Every number of a recipe, wherever it stands, is held to being one."""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import validate_recipe
from policies.stages import FineTuningOptions, ReinforcementOptions

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
MAY_BE_INFINITE = {"clip_high", "importance_cap", "gradient_clip"}
"""They take a bound away."""
WHAT_IS_LEFT_OUT: dict[str, dict[str, Any]] = {
    "size": {"parameters": 1000, "layers": 2, "hidden": 64, "kv_heads": 2, "head_size": 32},
    "hardware": {"gpu": "H100-80GB", "gpus": 8},
    "move_on": {"clip_share": 0.1},
}
"""Tables that the quickstart lacks and that have fields without a default."""


def numbers(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Path and type of each number in a model and the models in it."""
    for name, field in model.model_fields.items():
        if name == "stages":
            yield from numbers(FineTuningOptions, (*at, name, "sft"))
            yield from numbers(ReinforcementOptions, (*at, name, "rl-1"))
        for kind in [field.annotation, *get_args(field.annotation)]:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from numbers(kind, (*at, name))
            elif get_origin(field.annotation) in (dict, tuple):
                continue
            elif kind in (int, float) or get_args(kind)[:1] in ((int,), (float,)):
                yield (*at, name), int if int in (kind, *get_args(kind)) else float


NUMBERS = sorted(set(numbers(Recipe)), key=lambda found: found[0])


def with_value(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The quickstart, with a value somewhere in it."""
    data = tomllib.loads(QUICKSTART.read_text())
    node = data
    for part in path[:-1]:
        if part == "dataset":
            node["source"] = "dataset"
        node = node.setdefault(part, dict(WHAT_IS_LEFT_OUT.get(part, {})))
    node[path[-1]] = value
    return data


def test_the_walk_reaches_every_table() -> None:
    found = {".".join(path) for path, _ in NUMBERS}
    assert len(found) > 130
    assert {"seed", "hardware.gpus", "generators.engine.kv_tokens", "metrics.prometheus_port"} <= found
    assert {"stages.sft.limits.call.wall_seconds", "stages.rl-1.optimiser.muon.momentum"} <= found
    assert {"simulation.cost.base", "stages.rl-1.problems.dataset.limit", "environments.sessions.most_live"} <= found


@pytest.mark.parametrize(("path", "kind"), NUMBERS, ids=[".".join(path) for path, _ in NUMBERS])
def test_a_number_that_is_none_is_refused_by_name(path: tuple[str, ...], kind: type) -> None:
    wrong: list[object] = ["x", [], {}, math.nan, -math.inf, True]
    if kind is int:
        wrong += [10**30]
    if path[-1] not in MAY_BE_INFINITE:
        wrong += [math.inf]
    for value in wrong:
        with pytest.raises(RecipeError) as refusal:
            validate_recipe(with_value(path, value), "here")
        assert path[-1] in str(refusal.value) and path[0] in str(refusal.value), f"{path} = {value}: {refusal.value}"


@pytest.mark.parametrize("name", ["clip_high", "importance_cap"])
def test_a_bound_can_be_taken_away(name: str) -> None:
    recipe = validate_recipe(with_value(("stages", "rl-1", "objective", name), math.inf), "here")
    stage = recipe.stages["rl-1"]
    assert isinstance(stage, ReinforcementOptions)
    assert stage.objective.model_dump()[name] == math.inf
