"""An archive with the run's folder around it: the recipe, the metrics and the checkpoints that go with its rollouts.

Invariant: of several attempts stored under one id the last one counts, as it did in the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from actors.storage.frames import ArchiveCorrupt, ArchiveError
from actors.storage.index import IndexRow
from actors.storage.reader import Archive
from actors.storage.trained_steps import FILE, read_trained_steps
from orchestration.archive.source import find_archive
from orchestration.metrics import METRICS_FILE, Kind, MetricsUnreadable, Record, of_kind, read_metrics
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import RECIPE_FILE
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory

_NUMBER = re.compile(r"[0-9]{1,7}")
"""Of a group; a step has as many as the largest says."""


class RecordedRun:
    """What a run left behind.

    Raises `ArchiveError` if there is no archive at `path`, and `ArchiveCorrupt` if a part of it is damaged: a replay of
    what is left would be one of another run.
    """

    def __init__(self, path: Path) -> None:
        self.archive = Archive(find_archive(path))
        self.folder = self.archive.folder.parent
        damaged = [flaw for flaw in self.archive.flaws if not flaw.torn]
        if damaged:
            raise ArchiveCorrupt(f"the archive is damaged: {damaged[0]}")

    @cached_property
    def recipe(self) -> Recipe | None:
        """The run's recipe, every setting spelled out; None for an archive that lies alone."""
        path = self.folder / RECIPE_FILE
        return load_recipe(path) if path.is_file() else None

    def required_recipe(self) -> Recipe:
        """The run's recipe. Raises `RecipeError` if there is none."""
        if self.recipe is None:
            raise RecipeError(f"{self.folder} holds no recipe.toml beside the archive; say which with --recipe")
        return self.recipe

    @cached_property
    def rows(self) -> list[IndexRow]:
        """One row for each id, in the order in which they were first stored."""
        return list({row.id: row for row in self.archive.rows}.values())

    def stages(self) -> list[str]:
        """Stages that have rollouts, evaluations among them, in the order in which they were first stored."""
        return self.archive.stages()

    def reinforced(self, recipe: Recipe) -> dict[str, ReinforcementOptions]:
        """The recipe's stages of reinforcement that have stored rollouts, in the recipe's order."""
        stored = set(self.stages())
        return {
            name: stage
            for name, stage in recipe.stages.items()
            if name in stored and isinstance(stage, ReinforcementOptions)
        }

    def steps(self, stage: str) -> Iterator[tuple[int, list[list[Trajectory]]]]:
        """The groups of each step of a stage: `(step, [group][rollout])`, in the order in which resampling had them.

        A group of which nothing was stored (every rollout was dropped) is empty. Of an asynchronous stage the ledger
        says which groups a step took; steps that changed nothing are not in it. With dynamic sampling the ledger says
        it, too, of the steps that it has: one that was done again, after a death, may have added fewer groups.
        """
        options = None if self.recipe is None else self.recipe.stages.get(stage)
        if isinstance(options, ReinforcementOptions) and options.max_staleness:
            yield from self._trained_steps(stage)
            return
        taken: dict[int, set[str]] = {}
        if isinstance(options, ReinforcementOptions) and options.dynamic_sampling is not None:
            taken = {line["step"]: set(line["taken"]) for line in self._ledger(stage)}
        by_step: dict[int, dict[int, list[IndexRow]]] = {}
        for row in self.rows:
            if row.stage == stage and (row.step not in taken or row.group in taken[row.step]):
                by_step.setdefault(row.step, {}).setdefault(group_number(row), []).append(row)
        for step, groups in sorted(by_step.items()):
            ordered = [sorted(groups.get(number, []), key=lambda row: row.sample) for number in range(max(groups) + 1)]
            yield step, [[self.archive.read(row) for row in group] for group in ordered]

    def _trained_steps(self, stage: str) -> Iterator[tuple[int, list[list[Trajectory]]]]:
        by_group: dict[str, list[IndexRow]] = {}
        for row in self.rows:
            by_group.setdefault(row.group, []).append(row)
        for line in self._ledger(stage):
            missing = [group for group in line["taken"] if group not in by_group]
            if missing:
                raise ArchiveError(f"{FILE} says that group {missing[0]} was taken, of which nothing is stored")
            rows = [sorted(by_group[group], key=lambda row: row.sample) for group in line["taken"]]
            yield line["step"], [[self.archive.read(row) for row in group] for group in rows]

    def _ledger(self, stage: str) -> list[dict[str, Any]]:
        """The steps of a stage that changed the weights."""
        return [line for line in read_trained_steps(self.archive.folder / FILE) if line["stage"] == stage]

    def metrics(self, kind: Kind, stage: str) -> dict[int, Record]:
        """The records of a stage, by step (from 0); of a step that was recorded twice the last one counts."""
        records = of_kind(self._records, kind)
        try:
            return {int(each["step"]) - 1: each for each in records if each["stage"] == stage}
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveError(f"{self.folder / METRICS_FILE} has a {kind} without a stage and a step") from error

    @cached_property
    def _records(self) -> list[Record]:
        try:
            return read_metrics(self.folder / METRICS_FILE)
        except MetricsUnreadable as error:
            raise ArchiveError(str(error)) from error

    def checkpoint(self, stage: str) -> Path | None:
        """The weights that a stage ended with, if they were kept."""
        path = self.folder / "checkpoints" / stage
        return path if (path / "config.json").exists() else None

    def weights_of(self, recipe: Recipe, stage: str, option: str) -> Path:
        """The weights that a stage began with, or that an evaluation was of.

        Args:
            option: that gives other ones, for the message.

        Raises `RecipeError` if they are gone.
        """
        names, evaluated = list(recipe.stages), stage.removeprefix("evaluation-")
        if stage in names:
            after = names[names.index(stage) - 1] if stage != names[0] else None
        else:
            after = evaluated if evaluated in names else None  # else what it was of is what training began with
        if after is None:
            found, what = recipe.model.path or self.folder / "model", "the model that the run started from"
        else:
            found, what = self.checkpoint(after), f"the checkpoint of stage {after!r}"
        if found is None or not (found / "config.json").exists():
            raise RecipeError(f"{what} is not in {self.folder}; say with {option} where the weights are")
        return found


def group_number(row: IndexRow) -> int:
    """Which group of its step a rollout is of: groups are named `stage/step/number`. Raises `ArchiveError` if not."""
    number = row.group.rpartition("/")[2]
    if _NUMBER.fullmatch(number) is None:
        raise ArchiveError(f"{row.id} is of group {row.group!r}, whose name does not end in a number as a run's do")
    return int(number)
