"""A recipe from a TOML file, with a user's changes to single settings.

Example:
    recipe = load_recipe(Path("recipes/quickstart.toml"), overrides=["seed=1", "stages.1.steps=5"])

Invariant: an unknown key, a wrong type or a value out of range is a `RecipeError` that names the key, the value and
what would be right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestration.recipe import Recipe, RecipeError


def load_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe, apply `a.b=value` overrides (values in TOML syntax; bare words are text), validate.

    Raises `RecipeError`.
    """
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise RecipeError(f"no recipe at {path}; the repository's recipes/ holds some to begin with") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} can't be read: {error}") from error
    except (ValueError, RecursionError) as error:  # besides its own: numbers too long, lists in lists without end
        raise RecipeError(f"{path} is not valid TOML: {error}") from error
    return validate_recipe(data, str(path), overrides or [])


def validate_recipe(data: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from parsed TOML and overrides. Raises `RecipeError` that lists every fault."""
    for override in overrides:
        _apply(data, override)
    try:
        return Recipe.model_validate(_with_deterministic_defaults(data))
    except ValidationError as error:
        faults = [_fault(fault) for fault in error.errors()]
        raise RecipeError(f"{source}: " + ("\n  " if len(faults) > 1 else "") + "\n  ".join(faults)) from error


def _with_deterministic_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """What a deterministic run needs where the recipe says nothing, and other runs have otherwise."""
    generators, balancer = data.get("generators", {}), data.get("balancer", {})
    if data.get("deterministic") is not True or not isinstance(generators, dict) or not isinstance(balancer, dict):
        return data
    engine = generators.get("engine", {})
    if not isinstance(engine, dict):
        return data  # a fault, which validation names
    return data | {
        "generators": generators | {"engine": {"prefix_caching": False} | engine},
        "balancer": {"strategy": "worst_case"} | balancer,
    }


def _fault(fault: Any) -> str:
    """One line on one fault: the key, what is wrong, what was given."""
    # pydantic also names which kind of stage, and which member of a union, it took the value for: no keys of a recipe.
    loc = [str(part) for part in fault["loc"]]
    where = ".".join(part for place, part in enumerate(loc) if not _names_a_choice(loc, place))
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return f"unknown key {where!r} (value {fault['input']!r}); remove it or mend its spelling"
    if fault["type"] == "missing":
        return f"missing key {where!r}; add it"
    if fault["type"] == "union_tag_not_found":
        return f'missing key \'{where}.kind\'; add it: "fine_tune" or "reinforce"'
    if fault["type"] == "value_error":
        return f"{where}: {message}" if where else message
    given = repr(fault["input"])
    return f"{where} = {given if len(given) < 80 else given[:77] + '...'}: {message}"


def _names_a_choice(loc: list[str], place: int) -> bool:
    kind_of_stage = loc[0] == "stages" and place == 2
    return kind_of_stage or loc[place].startswith(("literal[", "function-after[", "[key]"))


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one dotted key."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {override!r} is not of the form a.b=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word
    node: Any = data
    *parents, last = key.strip().split(".")
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else node[_place(node, parent, override)]
        if not isinstance(node, dict | list):
            raise RecipeError(f"--set {override!r}: {parent!r} is a value, not a table")
    if isinstance(node, dict):
        node[last] = value
    else:
        node[_place(node, last, override)] = value


def _place(items: list[Any], index: str, override: str) -> int:
    """A place in a list, as a dotted key has it."""
    if not index.isdecimal() or int(index) >= len(items):
        raise RecipeError(f"--set {override!r}: {index!r} is no place in a list of {len(items)}; they start at 0")
    return int(index)
