"""Is an archive what was written? Every byte of it is read and tested; and indices are made anew.

Invariants:
- checking changes nothing and raises for nothing that a file holds, except a schema that this version can't read;
- each flaw is named by segment, offset and, as far as the index knows, trajectory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from actors.storage.frames import ArchiveCorrupt
from actors.storage.index import IndexRow, IndexWriter, index_path, read_index, row_of
from actors.storage.reader import Archive, Flaw, read_segment, segments
from actors.storage.writer import lock


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """What one segment holds."""

    name: str
    bytes: int
    trajectories: int
    """Whole ones."""
    unindexed: int
    """Whole ones that the index lacks or has wrong."""
    flaws: tuple[Flaw, ...]


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """What an archive holds."""

    segments: tuple[SegmentCheck, ...]
    repeated: dict[str, int]
    """Ids that are stored more than once (a resumed run rolls out again what it lost) -> how often."""

    @property
    def trajectories(self) -> int:
        return sum(segment.trajectories for segment in self.segments)

    @property
    def flaws(self) -> list[Flaw]:
        return [flaw for segment in self.segments for flaw in segment.flaws]

    @property
    def damaged(self) -> bool:
        """Whether bytes were changed; torn tails alone are what a crash leaves."""
        return any(not flaw.torn for flaw in self.flaws)


def check_archive(folder: Path) -> ArchiveCheck:
    """Read all of the archive in `folder`.

    Raises `ArchiveCorrupt` for a schema that this version can't read, `ArchiveError` if there is no such folder.
    """
    archive = Archive(folder)  # for what the index alone can tell
    ids: Counter[str] = Counter()
    checks = []
    for number, path in segments(folder):
        check, rows = _check_segment(number, path, [flaw for flaw in archive.flaws if flaw.segment == path.name])
        checks.append(check)
        ids.update(row.id for row in rows)
    return ArchiveCheck(tuple(checks), {each: count for each, count in ids.items() if count > 1})


def _check_segment(number: int, path: Path, known_flaws: list[Flaw]) -> tuple[SegmentCheck, list[IndexRow]]:
    indexed = read_index(index_path(path), number)
    data = path.read_bytes()
    rows: list[IndexRow] = []
    flaws: list[Flaw] = []
    for found in read_segment(path.name, data):
        if isinstance(found, Flaw):
            there = (row.id for row in indexed if row.offset < found.end and found.offset < row.end)
            flaws.append(replace(found, ids=tuple(there)))
        else:
            rows.append(row_of(found.trajectory, segment=number, **found.place))
    flaws += [flaw for flaw in known_flaws if flaw.offset >= len(data)]
    unindexed = len(set(rows) - set(indexed))
    return SegmentCheck(path.name, len(data), len(rows), unindexed, tuple(flaws)), rows


def write_indices(folder: Path) -> int:
    """Make the index of every segment anew; returns the number of rows.

    Raises `ArchiveInUse` while somebody writes to the archive, `ArchiveCorrupt` if a segment is damaged.
    """
    held = lock(folder)
    try:
        return sum(_write_index(number, path) for number, path in segments(folder))
    finally:
        held.close()


def _write_index(number: int, path: Path) -> int:
    aside = index_path(path).with_suffix(".idx.partial")
    aside.unlink(missing_ok=True)
    writer, count = IndexWriter(aside), 0
    try:
        for found in read_segment(path.name, path.read_bytes()):
            if not isinstance(found, Flaw):
                writer.add(row_of(found.trajectory, segment=number, **found.place))
                count += 1
            elif not found.torn:
                raise ArchiveCorrupt(str(found))
    finally:
        writer.close()
    aside.replace(index_path(path))
    return count
