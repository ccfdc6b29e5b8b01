"""A run's folder.

`recipe.toml` (resolved), `software.json` (versions of greenroom and what it computes with), `sandbox.json` (what the
sandbox's image holds), `metrics.jsonl`, `summary.json`, `archive/`, `analysis.json`, `checkpoints/` (a model for each
stage), `resume/` (checkpoints to go on from), `logs/`, `report.html`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from actors.storage.disk import removed_on_failure, sync, writing
from env.image import Image
from orchestration.recipe import Recipe, RecipeError
from orchestration.software import software_versions

LOCK_FILE = "run.lock"
RECIPE_FILE = "recipe.toml"
SANDBOX_FILE = "sandbox.json"
SOFTWARE_FILE = "software.json"


def choose_folder(recipe: Recipe, runs: Path) -> Path:
    """`runs/NAME`, or `runs/NAME-2`, `runs/NAME-3`, ... if that holds an earlier run: nothing is overwritten.

    Raises `RecipeError` if the folder can't be written to.
    """
    try:
        _check_writable(runs)
        number, folder = 1, runs / recipe.name
        while folder.exists() and any(folder.iterdir()):
            number += 1
            folder = runs / f"{recipe.name}-{number}"
    except OSError as error:
        raise RecipeError(
            f"the run's folder {runs} can't be written to ({error.strerror}); give another with --runs"
        ) from error
    return folder


def _check_writable(folder: Path) -> None:
    """Whether `folder` exists, or can be made, and can be written to. Raises `RecipeError`, `OSError`."""
    existing = folder
    while not (existing.exists() or existing.is_symlink()):  # a link to nothing keeps a folder from being made
        existing = existing.parent
    if not existing.is_dir():
        raise RecipeError(f"the run's folder can't be made: {existing} is not a folder; give another with --runs")
    probe = existing / f".greenroom-probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


class RunInUse(RecipeError):
    """A run that lives: another process writes to its folder."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Be the only one that runs in `folder`; the operating system lets go when the process ends, however it ends.

    Raises `RunInUse` if another process does, `CannotWrite` where the file system does not take the lock.
    """
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK_FILE).open("a+b", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read().decode().strip() or "unknown"
                raise RunInUse(
                    f"the run in {folder} is still at work, as process {owner}; wait for its end, or end it with Ctrl-C"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """The resolved recipe, as TOML that `load_recipe` reads back."""
    data = recipe.model_dump(mode="json", exclude_none=True)
    write_whole(folder / RECIPE_FILE, tomli_w.dumps(data))


def write_versions(folder: Path) -> None:
    """Note what a run computes with, and what programs find in this machine's sandbox, so that a replay can tell
    another image from it. A run that is resumed has those that it was last resumed with."""
    write_json(folder / SOFTWARE_FILE, software_versions())
    write_json(folder / SANDBOX_FILE, Image().versions())


def read_sandbox_versions(folder: Path) -> dict[str, str] | None:
    """Library -> version, as the run noted them; None if it did not. Raises `RecipeError` if the file is another."""
    path = folder / SANDBOX_FILE
    if not path.is_file():
        return None
    try:
        return TypeAdapter(dict[str, str]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise RecipeError(f"{path} does not say what an image held; restore it, or take it away") from error


def write_json(path: Path, value: Any) -> None:
    """A value as readable JSON, written aside and renamed."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part, even after a loss of power."""
    aside = path.with_name(path.name + ".partial")
    with removed_on_failure(aside):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        sync(aside)
        aside.replace(path)
