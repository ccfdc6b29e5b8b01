"""The checkpoints that a run is resumed from: folders `000017`, each whole or not there.

Invariants:
- a checkpoint is written to `NUMBER.partial`, each file synced to the disk, and renamed when its manifest is complete:
  a death in between leaves the one before as the newest;
- one is read only if every file has the size and the SHA-256 that its manifest says;
- numbers only rise: a checkpoint is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from actors.storage.disk import removed_on_failure, sync, writing
from actors.system.kill_point import reached
from policies.run_progress import RunProgress

MANIFEST, PROGRESS = "manifest.json", "progress.json"
FORMAT = 1
_NAME = re.compile(r"\d{6,}")
DAMAGED = ".damaged"


class CheckpointDamaged(ValueError):
    """A checkpoint that is not what was written; the text names it and the file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole one."""

    path: Path
    progress: RunProgress


def write_checkpoint(folder: Path, progress: RunProgress, write_files: Callable[[Path], None], keep: int) -> Path:
    """Write the next checkpoint in `folder`, and remove all but the newest `keep`; returns where it is.

    Args:
        write_files: puts the learner's files into the folder that it is given.

    Raises `CannotWrite` where the file system does not take it; then no checkpoint was added, and none removed.
    """
    for left in folder.glob("*.partial"):
        shutil.rmtree(left)
    path = folder / f"{_next_number(folder):06d}"
    partial = path.with_name(path.name + ".partial")
    with writing(folder), removed_on_failure(partial):
        partial.mkdir(parents=True)
        write_files(partial)
        reached("checkpoint")
        (partial / PROGRESS).write_text(progress.model_dump_json(indent=2))
        files = sorted(file for file in partial.iterdir() if file.is_file())
        manifest = {file.name: {"bytes": file.stat().st_size, "sha256": _digest(file)} for file in files}
        (partial / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": manifest}, indent=2) + "\n")
        for file in (*files, partial / MANIFEST, partial):
            sync(file)
        partial.rename(path)
        sync(folder)
    for old in _numbered(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`. Raises `CheckpointDamaged` if it is not what was written."""
    manifest = _json(path / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise CheckpointDamaged(
            f"{path} has format {manifest.get('format')}; this version reads {FORMAT}: resume with the version that "
            "wrote it"
        )
    for name, known in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointDamaged(f"{file} is missing")
        if file.stat().st_size != known["bytes"]:
            raise CheckpointDamaged(f"{file} has {file.stat().st_size} bytes; {known['bytes']} were written")
        if _digest(file) != known["sha256"]:
            raise CheckpointDamaged(f"{file} fails its checksum")
    try:
        return Checkpoint(path, RunProgress.model_validate_json((path / PROGRESS).read_text()))
    except ValidationError as error:
        raise CheckpointDamaged(f"{path / PROGRESS} is not a run's progress: {error}") from error


def newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, if there is any, and what is wrong with each newer one."""
    faults: list[str] = []
    for path in reversed(_numbered(folder)):
        try:
            return read_checkpoint(path), faults
        except CheckpointDamaged as damage:
            faults.append(str(damage))
    return None, faults


def set_aside_damaged(folder: Path, newest: Checkpoint | None) -> None:
    """Rename what is newer than the newest whole checkpoint: it must not take the place of one that is of use."""
    for path in _numbered(folder):
        if newest is None or int(path.name) > int(newest.path.name):
            path.rename(path.with_name(path.name + DAMAGED))


def _numbered(folder: Path) -> list[Path]:
    """Oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: int(path.name))


def _next_number(folder: Path) -> int:
    if not folder.is_dir():
        return 1
    numbers = [int(path.name.partition(".")[0]) for path in folder.iterdir() if _NAME.match(path.name)]
    return 1 + max(numbers, default=0)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{path} can't be read: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise CheckpointDamaged(f"{path} is not a manifest")
    return found
