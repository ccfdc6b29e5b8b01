"""An archive's index: a short row per trajectory, so that it can be filtered, sorted and opened without reading it all.

Beside `segment-00000.gra` lies `segment-00000.idx`, of the same kind of frames: first a header (schema, names of
columns), then up to `ROWS_PER_FRAME` rows each.

Invariants:
- the index is derived: losing it, or a part of it, loses nothing, since rows that it lacks are made from the segment;
- an index never says what its segment does not hold: rows are written after their frames;
- rows lie end to end, as their frames do: what else a file in the place of an index says is a flaw of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import NamedTuple, get_type_hints

from actors.storage.frames import MAGIC_BYTES, MOST_FILE_BYTES, ArchiveCorrupt, Frame, FrameFile, decode, scan
from policies import tokens
from policies.trajectory import SCHEMA_VERSION, Trajectory

INDEX_MAGIC = b"GREENRX1"
ROWS_PER_FRAME = 64
"""How many rows a crash may leave out of the index (they are read from the segment then)."""


class IndexRow(NamedTuple):
    """What is known of a trajectory without reading it."""

    id: str
    group: str
    sample: int
    stage: str
    step: int
    problem: str
    """Id of the problem."""
    family: str
    reward: float
    correct: bool
    reason: str
    """The verdict's."""
    finish: str
    turns: int
    calls: int
    tool_errors: int
    statuses: tuple[str, ...]
    """Status of each call, in order."""
    prompt_tokens: int
    model_tokens: int
    response_tokens: int
    """After the prompt, model and tool together."""
    generator: str
    segment: int
    offset: int
    """Of the frame in its segment, bytes."""
    end: int
    checksum: int
    """CRC-32 of the compressed payload: tells a repeat from another attempt under the same id."""


def row_of(trajectory: Trajectory, *, segment: int, offset: int, end: int, checksum: int) -> IndexRow:
    """The row of a trajectory that is stored at this place."""
    return IndexRow(
        id=trajectory.id,
        group=trajectory.group,
        sample=trajectory.sample,
        stage=trajectory.stage,
        step=trajectory.step,
        problem=trajectory.problem.id,
        family=trajectory.problem.family,
        reward=trajectory.reward,
        correct=trajectory.verdict.correct,
        reason=trajectory.verdict.reason,
        finish=trajectory.finish,
        turns=trajectory.turns,
        calls=len(trajectory.calls),
        tool_errors=trajectory.tool_errors,
        statuses=tuple(record.result.status for record in trajectory.calls),
        prompt_tokens=tokens.count(trajectory.spans[0].ids),
        model_tokens=trajectory.model_tokens,
        response_tokens=trajectory.response_tokens,
        generator=trajectory.generator,
        segment=segment,
        offset=offset,
        end=end,
        checksum=checksum,
    )


def index_path(segment: Path) -> Path:
    """Where a segment's index is."""
    return segment.with_suffix(".idx")


class IndexWriter:
    """Writes a segment's index, a frame of rows at a time."""

    def __init__(self, path: Path) -> None:
        self._file = FrameFile(path, INDEX_MAGIC)
        self._file.append(self._file.pack({"schema": SCHEMA_VERSION, "columns": IndexRow._fields}))
        self._pending: list[IndexRow] = []

    def add(self, row: IndexRow) -> None:
        """Add a row; it is on its way to the disk with the frame that it fills, or with `flush`."""
        self._pending.append(row)
        if len(self._pending) >= ROWS_PER_FRAME:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait. Raises `OSError`; they then wait for the next time."""
        if self._pending:
            self._file.append(self._file.pack(self._pending))
            self._pending = []

    def close(self) -> None:
        """Write the rows that wait, and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


_TYPES = [list if name == "statuses" else kind for name, kind in get_type_hints(IndexRow).items()]
"""Of a row's values, as they are unpacked."""


def read_index(path: Path, segment: int) -> list[IndexRow]:
    """The rows of the index of a segment up to its first flaw; none if there is no such file, or of another schema."""
    if not path.is_file() or path.stat().st_size > MOST_FILE_BYTES:
        return []
    rows: list[IndexRow] = []
    for row in _rows(path.read_bytes()):
        begin = rows[-1].end if rows else max(row.offset, MAGIC_BYTES)
        if row.segment != segment or not begin == row.offset < row.end:
            break
        rows.append(row)
    return rows


def _rows(data: bytes) -> Iterator[IndexRow]:
    header = True
    for found in scan(data, INDEX_MAGIC):
        if not isinstance(found, Frame):
            return
        try:
            record = decode(found)
        except ArchiveCorrupt:
            return
        if header:
            if record != {"schema": SCHEMA_VERSION, "columns": list(IndexRow._fields)}:
                return
            header = False
        else:
            for values in record if isinstance(record, list) else [record]:
                if not isinstance(values, list) or list(map(type, values)) != _TYPES:
                    return
                row = IndexRow._make(values)
                if not (isfinite(row.reward) and all(isinstance(status, str) for status in row.statuses)):
                    return
                yield row._replace(statuses=tuple(row.statuses))
