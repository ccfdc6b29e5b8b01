"""`resumed.json` in a run's folder: each time that weights were restored, and how they are called since.

Invariant: a lineage is noted, on the disk, before any weights go by its name.
"""

from __future__ import annotations

import json
from pathlib import Path

from actors.storage.disk import sync
from policies.run_progress import Restoration, next_lineage

FILE = "resumed.json"


def read_restorations(run: Path) -> list[Restoration]:
    """Oldest first; none if the file is not there. Raises `ValueError` if it is damaged."""
    path = run / FILE
    try:
        return [Restoration.model_validate(each) for each in json.loads(path.read_text())] if path.exists() else []
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def note_restoration(
    run: Path, checkpoint: str, *, wall_seconds: float = 0.0, within_run: bool = False
) -> list[Restoration]:
    """Begin the next lineage with a checkpoint (empty: with the run's beginning); returns all, it last."""
    known = read_restorations(run)
    known.append(
        Restoration(
            lineage=next_lineage(known), checkpoint=checkpoint, wall_seconds=wall_seconds, within_run=within_run
        )
    )
    aside = run / f"{FILE}.partial"
    aside.write_text(json.dumps([each.model_dump() for each in known], indent=2) + "\n")
    sync(aside)
    aside.replace(run / FILE)
    sync(run)
    return known
