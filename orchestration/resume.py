"""Going on with a run that died: what is checked and put right before its actors start again.

Invariants:
- nothing is changed in the folder of a run that lives, that is done, or that the recipe given is not that of;
- what the restored weights do not hold is taken back: the ledger of trained steps and the metrics end where the
  checkpoint does; the archive keeps what it has, and its rollouts count if these weights sampled them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.rewinding import where
from actors.storage.checkpoints import newest_checkpoint, set_aside_damaged
from actors.storage.restorations import note_restoration, read_restorations
from actors.storage.trained_steps import cut_trained_steps
from actors.system.leftovers import sweep_leftovers
from orchestration.metrics import METRICS_FILE, cut_metrics, figure, read_metrics
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import RECIPE_FILE
from policies.run_progress import NOTHING_DONE, RunProgress, same_weights
from policies.trajectory import UNTRAINED, WeightsVersion

CHECKPOINTS = "resume"
"""Folder of the checkpoints within a run's folder."""
_OF_THE_MACHINE = re.compile(r"cluster\..*")
_OF_THE_MEANS = re.compile(
    r"(supervision|checkpoints|metrics)\..*|environments\.(workers|preloaded|recycle_after)|learner\.threads|generators\.threads|"
    r"generators\.engine\.(kv_tokens|max_running|max_step_tokens)|"
    r"stages\.[^.]+\.optimiser\.(micro_batch_tokens|activation_checkpointing)"
)
"""Fields that say what a run may use, not what it learns; bits of a deterministic run may depend on them."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run begins with."""

    checkpoint: Path | None = None
    progress: RunProgress = NOTHING_DONE
    """Its version is what the learner's weights are called from now on."""
    restored: tuple[WeightsVersion, ...] = ()
    """What the restored weights were called before."""
    times_resumed: int = 0
    wall_seconds: float = 0.0
    """That the run has taken so far."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    @property
    def version(self) -> WeightsVersion:
        return self.progress.version


def find_run(run: Path, runs: Path) -> Path:
    """The folder of a run that is given by its path, or by its name within `runs`. Raises `RecipeError`."""
    for folder in (run, runs / run):
        try:
            if (folder / RECIPE_FILE).is_file():
                return folder
        except OSError as error:
            raise RecipeError(f"{folder} can't be looked into ({error.strerror})") from error
    known = sorted(path.parent.name for path in runs.glob("*/recipe.toml"))
    raise RecipeError(f"no run at {run} nor at {runs / run}; runs in {runs}: {', '.join(known) or 'none'}")


def recipe_of(folder: Path, given: Recipe) -> Recipe:
    """The recipe that a run goes on with: `given`, if it is the run's own in all that is learned.

    Other machines, and settings that need less memory, don't change that (a deterministic run's bits depend on the
    latter).

    Raises `RecipeError` if `given` is another one in anything else; it names the fields.
    """
    own = load_recipe(folder / RECIPE_FILE)
    differing = [
        difference
        for difference in _differences(own.model_dump(mode="json"), given.model_dump(mode="json"))
        if not _OF_THE_MACHINE.fullmatch(difference[0])
        and (own.deterministic or not _OF_THE_MEANS.fullmatch(difference[0]))
    ]
    if differing:
        raise RecipeError(
            f"the run in {folder} was begun with another recipe: "
            + "; ".join(f"{name} is {ours!r} there and {theirs!r} here" for name, ours, theirs in differing)
            + ". Resume without a recipe and with other settings only, or begin a new run"
        )
    return given


def take_up(folder: Path) -> Beginning:
    """Bring a dead run's folder to the state of its newest whole checkpoint. Whoever calls this holds the folder.

    Raises `RecipeError` if the run is done, or a file of its books is damaged.
    """
    if _is_done(folder):
        raise RecipeError(f"the run in {folder} is done; nothing is left to resume")
    sweep_leftovers()  # an orphan of the dead run could still write to it
    try:
        return _taken_back(folder)
    except ValueError as error:
        raise RecipeError(
            f"the run in {folder} can't be resumed: {error}; if that can't be restored, begin a new run"
        ) from error


def _taken_back(folder: Path) -> Beginning:
    """The folder at its newest whole checkpoint. Raises `ValueError` that names the file that is damaged."""
    checkpoint, faults = newest_checkpoint(folder / CHECKPOINTS)
    set_aside_damaged(folder / CHECKPOINTS, checkpoint)
    restorations = read_restorations(folder)
    progress = NOTHING_DONE if checkpoint is None else checkpoint.progress
    name = "" if checkpoint is None else checkpoint.path.name
    restored = () if checkpoint is None else same_weights(progress.version, name, restorations)
    cut_trained_steps(folder / "archive", progress.archive.trained_steps)
    records = read_metrics(folder / METRICS_FILE)
    wall_seconds = max((figure(record, "seconds") or 0.0 for record in records), default=0.0)
    cut_metrics(folder / METRICS_FILE, progress)
    restorations = note_restoration(folder, name, wall_seconds=wall_seconds)
    lineage = restorations[-1].lineage
    version = progress.version if checkpoint is not None else UNTRAINED
    return Beginning(
        checkpoint=None if checkpoint is None else checkpoint.path,
        progress=progress.model_copy(update={"version": version._replace(lineage=lineage)}),
        restored=restored,
        times_resumed=sum(not each.within_run for each in restorations),
        wall_seconds=wall_seconds,
        notes=(*[f"damaged: {fault}" for fault in faults], f"resuming {where(name, progress)}"),
    )


def _is_done(folder: Path) -> bool:
    path = folder / "summary.json"
    try:
        return path.exists() and json.loads(path.read_text()).get("finished", False)
    except ValueError:  # torn, as a machine without power may leave it: checkpoints say more than it did
        return False


def _differences(ours: Any, theirs: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted names of what differs, with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = [*ours, *[name for name in theirs if name not in ours]]
        return [
            found
            for name in names
            for found in _differences(ours.get(name), theirs.get(name), f"{where}.{name}" if where else name)
        ]
    return [] if ours == theirs else [(where, ours, theirs)]
