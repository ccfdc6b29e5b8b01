"""The ledger of trained steps: which groups a run has learned from, in their order, beside the archive that holds them.

`trained.jsonl` has a line for each step that has changed the weights: stage, step, version, the groups with the ids of
their rollouts and their advantages, the ids of all groups that it took (those without signal among them), and a digest
of all that the learner was given.

Invariants:
- a line is with the operating system before its step counts in any checkpoint;
- whoever resumes a run cuts the ledger back to what the checkpoint knows: its lines are the steps that the weights
  hold.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from policies.batch import TrainingSequence
from policies.grouping import TrainedGroup
from policies.trajectory import WeightsVersion

FILE = "trained.jsonl"


class TrainedSteps:
    """Appends to the ledger of the archive in `folder`."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        known = read_trained_steps(path)
        if path.exists():
            cut_trained_steps(folder, len(known))  # a torn last line goes
        self._known = {_key(line["stage"], line["step"], line["version"]) for line in known}
        self._file = path.open("a", encoding="utf-8")
        self.count = len(known)

    def append(
        self,
        stage: str,
        step: int,
        version: WeightsVersion,
        groups: Iterable[TrainedGroup],
        taken: Iterable[str],
        digest: str,
    ) -> None:
        """Add a step, unless it is there already."""
        if _key(stage, step, version) in self._known:
            return
        line = {
            "stage": stage,
            "step": step,
            "version": list(version),
            "groups": [group._asdict() for group in groups],
            "taken": list(taken),
            "digest": digest,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._known.add(_key(stage, step, version))
        self.count += 1

    def sync(self) -> None:
        """Wait until the disk has it all."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_trained_steps(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a ledger, in order; none if there is no file. Raises `ValueError` for one that is damaged."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last newline is torn, or nothing
    return [_read_line(path, number, line) for number, line in enumerate(lines, 1)]


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is damaged ({error})") from error


def cut_trained_steps(folder: Path, count: int) -> None:
    """Keep the first `count` lines of a ledger. Raises `ValueError` if it has fewer."""
    path = folder / FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    if len(lines) < count:
        raise ValueError(f"{path} has {len(lines)} steps, but the checkpoint knows of {count}; restore the file")
    if path.exists():
        os.truncate(path, sum(len(line) + 1 for line in lines[:count]))


def batch_digest(sequences: Iterable[TrainingSequence]) -> str:
    """SHA-256 of what a learner is given, in its order: two batches of one digest are the same, bit for bit."""
    digest = hashlib.sha256()
    for each in sequences:
        ids = each.ids if isinstance(each.ids, bytes) else repr(each.ids).encode()
        for part in (ids, each.learned, each.logprobs, np.float64(each.advantage).tobytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _key(stage: str, step: int, version: Iterable[int]) -> tuple[str, int, tuple[int, ...]]:
    return stage, step, tuple(version)
