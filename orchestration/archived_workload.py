"""A simulation's workload from a stored archive: real lengths, turns, calls and tool times in place of a profile's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from actors.storage.frames import ArchiveError
from actors.storage.reader import Archive
from orchestration.archive.source import find_archive
from orchestration.recipe import Recipe, RecipeError
from orchestration.simulation import stage_options
from policies.recorded_workload import NothingRecorded, RecordedWorkload


def archived_workload(archive: Archive, stages: Mapping[str, str] | None = None) -> RecordedWorkload:
    """The rollouts of an archive as a script for simulated engines, environments and dialogues.

    Args:
        stages: stage that will be asked for -> stage that was recorded; None: each recorded stage by its own name.

    Raises `ArchiveError` (`ArchiveCorrupt` for damage) if the archive can't be read, lacks a stage, or has rollouts
    that nobody can have played.
    """
    rows = {stage: [row for row in archive.rows if row.stage == stage] for stage in archive.stages()}
    wanted = {stage: stage for stage in sorted(rows)} if stages is None else dict(stages)
    for recorded in wanted.values():
        if recorded not in rows:
            raise ArchiveError(
                f"{archive.folder} holds no rollouts of stage {recorded!r}; it has {', '.join(sorted(rows)) or 'none'}"
            )
    try:
        return RecordedWorkload({asked: archive.trajectories(rows[recorded]) for asked, recorded in wanted.items()})
    except NothingRecorded as error:
        raise ArchiveError(str(error)) from error


def workload_for(recipe: Recipe, stage: str, path: Path, recorded: str | None = None) -> RecordedWorkload:
    """What the rollouts of a recipe's stage say, from an archive.

    Args:
        recorded: the archive's stage; None: the one of the same name, else the only one that it has.

    Raises `RecipeError` if the stage can't be simulated, or not with this archive.
    """
    most = stage_options(recipe, stage).limits.max_tokens
    try:
        archive = Archive(find_archive(path))
        known = archive.stages()
        recorded = recorded or (stage if stage in known or len(known) != 1 else known[0])
        workload = archived_workload(archive, {stage: recorded})
    except (ArchiveError, OSError) as error:
        raise RecipeError(
            f"--workload {path}: {error}; give an archive, and with --workload-stage the stage to take of it"
        ) from error
    if workload.longest_prompt(stage) >= most:
        raise RecipeError(
            f"--workload {path}: its longest prompt has {workload.longest_prompt(stage)} tokens, but "
            f"stages.{stage}.limits.max_tokens is {most}; raise it, and generators.engine.max_sequence_tokens with it"
        )
    return workload
