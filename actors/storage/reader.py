"""Reading an archive: its rows by the index, its trajectories one by one or in order, and what is wrong with it.

Invariants:
- any folder of segments opens, whatever a crash or a bad disk did to them: what is torn or damaged is named in
  `Archive.flaws`, and costs no other trajectory;
- damage is never passed over in silence: reading a damaged trajectory raises, and so does reading all in order;
- reading takes no lock: a living archive is read up to its last whole frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from actors.storage.frames import (
    MOST_FILE_BYTES,
    ArchiveCorrupt,
    ArchiveError,
    Damaged,
    Frame,
    Torn,
    decode,
    frame_at,
    scan,
)
from actors.storage.index import IndexRow, index_path, read_index, row_of
from policies.trajectory import SCHEMA_VERSION, Trajectory

SEGMENT_MAGIC = b"GREENRM1"
_PLACE = ("id", "group", "sample", "stage", "step")
"""Fields that say which rollout a trajectory is, and by which rows are chosen to be read together."""
RESTORE = "restore the file from a copy"
_NAME = re.compile(r"segment-([0-9]{5}|[1-9][0-9]{5,})\.gra")
"""As `segment_path` writes it: each number has one name."""


def segment_path(folder: Path, number: int) -> Path:
    """Where segment `number` is."""
    return folder / f"segment-{number:05d}.gra"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """The archive's segments by number, oldest first.

    Raises `ArchiveError` for one that can't be read: a pipe or a device, say, or a file without an end.
    """
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    for _, path in found:
        if not path.is_file():
            raise ArchiveError(f"{path} is not a file, so no segment; {RESTORE}")
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ArchiveError(f"{path} has {path.stat().st_size} bytes; no segment has more than {MOST_FILE_BYTES}")
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Flaw:
    """A stretch of a segment that holds no whole trajectory."""

    segment: str
    """Name of the file."""
    offset: int
    end: int
    torn: bool
    """Whether the segment just ends there: its writer died, or is writing; otherwise the bytes were changed."""
    what: str
    ids: tuple[str, ...] = ()
    """The trajectories that were there, as far as the index knows."""

    def __str__(self) -> str:
        named = f" (trajectory {', '.join(self.ids)})" if self.ids else ""
        return f"{self.segment}, byte {self.offset}{named}: {self.what}"


class Archive:
    """An archive for reading.

    Args:
        folder: holds the segments.

    Raises `ArchiveError` if there is no such folder, or it is a run's and not its archive's; `ArchiveCorrupt` for a
    schema that this version can't read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ArchiveError(f"there is no archive at {folder}; give the folder that holds segments, RUN/archive")
        found = segments(folder)
        if not found and (inner := folder / "archive").is_dir():
            raise ArchiveError(f"{folder} holds no segments; the archive is in {inner}")
        self.folder = folder
        self.rows: list[IndexRow] = []
        """One for each trajectory, in the order in which they were stored."""
        self.flaws: list[Flaw] = []
        """What opening came upon. Damage to what the index knows shows when it is read, or by `check_archive`."""
        self.unindexed = 0
        """Rows that had to be made from segments."""
        for number, path in found:
            self._open_segment(number, path)

    def stages(self) -> list[str]:
        """Those that have rollouts, in the order in which they were first stored."""
        return list(dict.fromkeys(row.stage for row in self.rows))

    @cached_property
    def groups(self) -> dict[str, list[IndexRow]]:
        """The rows of each group, in order of the archive."""
        found: dict[str, list[IndexRow]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found

    def read(self, row: IndexRow) -> Trajectory:
        """The trajectory of a row.

        Raises `ArchiveCorrupt` if its frame is not what was written.
        """
        return read_row(self.folder, row)

    def trajectories(
        self, rows: Iterable[IndexRow] | None = None, on_damage: Callable[[ArchiveCorrupt], None] | None = None
    ) -> Iterator[Trajectory]:
        """The trajectories of these rows (None: of all).

        Raises as `read` does, and for damage that opening came upon. With `on_damage` the former is told to it and left
        out, the latter is in `flaws`.
        """
        for flaw in self.flaws:
            if not flaw.torn and on_damage is None:
                raise ArchiveCorrupt(str(flaw))
        for row in self.rows if rows is None else rows:
            try:
                yield self.read(row)
            except ArchiveCorrupt as error:
                if on_damage is None:
                    raise
                on_damage(error)

    def _open_segment(self, number: int, path: Path) -> None:
        size = path.stat().st_size
        indexed = read_index(index_path(path), number)
        rows = [row for row in indexed if row.end <= size]
        start = rows[-1].end if rows else 0
        self.rows += rows
        lost = tuple(row.id for row in indexed[len(rows) :])
        if start < size or not rows:
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            for found in read_segment(path.name, data, start):
                if not isinstance(found, Flaw):
                    self.rows.append(row_of(found.trajectory, segment=number, **found.place))
                    self.unindexed += 1
                else:
                    self.flaws.append(replace(found, ids=lost) if found.torn else found)
                    lost = () if found.torn else lost
        if lost:
            self.flaws.append(Flaw(path.name, size, size, True, "the segment ends before what the index knows", lost))


class Stored(NamedTuple):
    """A trajectory, and its frame's place."""

    trajectory: Trajectory
    offset: int
    end: int
    checksum: int

    @property
    def place(self) -> dict[str, int]:
        return {"offset": self.offset, "end": self.end, "checksum": self.checksum}


def read_row(folder: Path, row: IndexRow) -> Trajectory:
    """The trajectory of a row of the archive in `folder`, which need not be opened for it.

    Raises `ArchiveCorrupt` if its frame is not what was written.
    """
    path = segment_path(folder, row.segment)
    with path.open("rb") as file:
        file.seek(row.offset)
        frame = frame_at(file.read(row.end - row.offset), 0)
    if frame is None or frame.checksum != row.checksum:
        what = "the frame fails its checksum" if frame is None else "not the frame that the index knows"
        raise ArchiveCorrupt(str(Flaw(path.name, row.offset, row.end, False, f"{what}; {RESTORE}", (row.id,))))
    try:
        trajectory = _validated(frame)
        if any(getattr(trajectory, name) != getattr(row, name) for name in _PLACE):
            raise ArchiveCorrupt(
                f"the index says otherwise of {trajectory.id}, which it holds; `greenroom archive index` makes it anew"
            )
    except ArchiveCorrupt as error:
        raise ArchiveCorrupt(str(Flaw(path.name, row.offset, row.end, False, str(error), (row.id,)))) from error
    return trajectory


def read_segment(name: str, data: bytes, base: int = 0) -> Iterator[Stored | Flaw]:
    """Everything in a segment, in order: `data` are its bytes from offset `base` on, where a frame begins (0: all).

    Raises `ArchiveCorrupt` for a schema that this version can't read.
    """
    header = base == 0
    for found in scan(data, SEGMENT_MAGIC, base):
        if isinstance(found, Torn):
            yield Flaw(name, found.offset, found.end, True, "the segment ends within a frame")
        elif isinstance(found, Damaged):
            yield Flaw(name, found.offset, found.end, False, f"{found.what}; {RESTORE}")
            header = header and found.offset == 0  # whose damage is behind the magic may have lost its header
        elif header:
            _check_schema(name, found)
            header = False
        else:
            try:
                yield Stored(_validated(found), found.offset, found.end, found.checksum)
            except ArchiveCorrupt as error:
                yield Flaw(name, found.offset, found.end, False, str(error))


def read_archive(folder: Path) -> Iterator[Trajectory]:
    """All whole trajectories of an archive, in the order in which they were stored; a torn tail is passed over.

    Raises `ArchiveCorrupt` at the first damage, and for a file that is no segment.
    """
    for _, path in segments(folder):
        for found in read_segment(path.name, path.read_bytes()):
            if not isinstance(found, Flaw):
                yield found.trajectory
            elif not found.torn:
                raise ArchiveCorrupt(str(found))


def _check_schema(name: str, frame: Frame) -> None:
    try:
        header = decode(frame)
    except ArchiveCorrupt as error:
        raise ArchiveCorrupt(f"{name}, byte {frame.offset}: {error}") from error
    schema = header.get("schema") if isinstance(header, dict) else None
    if type(schema) is not int:  # True is 1, too
        raise ArchiveCorrupt(f"{name} does not begin with its schema; {RESTORE}")
    if schema != SCHEMA_VERSION:
        raise ArchiveCorrupt(f"{name} has schema {schema}; this version reads schema {SCHEMA_VERSION}")


def _validated(frame: Frame) -> Trajectory:
    """The trajectory of a frame. Raises `ArchiveCorrupt` if it holds none."""
    try:
        return Trajectory.model_validate(decode(frame))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]  # of as many as there are items
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise ArchiveCorrupt(
            f"the frame is whole, but holds no trajectory of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        ) from error
