"""Files that nobody's writer wrote, checksums and all: they are refused or named, and cost nothing else."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard

from actors.storage.check import check_archive, write_indices
from actors.storage.frames import (
    FRAME,
    MOST_FILE_BYTES,
    MOST_RECORD_BYTES,
    ArchiveCorrupt,
    ArchiveError,
    FrameFile,
    Torn,
    scan,
)
from actors.storage.index import INDEX_MAGIC, IndexRow, index_path
from actors.storage.reader import SEGMENT_MAGIC, Archive, segment_path
from actors.storage.writer import ArchiveWriter
from policies.trajectory import Trajectory
from tests.actors.storage.samples import random_trajectory

STORED = [random_trajectory(serial) for serial in range(3)]


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def record(value: Any) -> bytes:
    """The payload of a value."""
    data = msgpack.packb(value, default=lambda each: each.__dict__)
    assert data is not None
    return packed(data)


def expanding(size: int) -> bytes:
    """A payload of a few KiB that expands to `size` zeros, and does not say so."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    parts = [compressor.compress(bytes(1 << 24)) for _ in range(size >> 24)]
    return b"".join([*parts, compressor.flush()])


def altered(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A stored trajectory as a payload, one of its fields altered."""
    fields = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(record(STORED[1].__dict__)))
    change(fields)
    return record(fields)


CLAIMING = zstandard.FRAME_HEADER + b"\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\0\0"
"""A zstd frame that says that it holds 2^60 bytes."""
PAYLOADS = {
    "a size beyond all memory": CLAIMING,
    "more than a record may have": expanding(MOST_RECORD_BYTES + (1 << 24)),
    "no zstd frame": zstandard.FRAME_HEADER + b"garbage!",
    "nothing": packed(b""),
    "no msgpack": packed(b"\xc1"),
    "two objects": packed(b"\x01\x02"),
    "no UTF-8": packed(b"\xa2\xff\xff"),
    "a list as a key": packed(b"\x81\x90\x01"),
    "a list of four billion": packed(b"\xdd\xff\xff\xff\xff"),
    "deep lists": packed(b"\x91" * 100_000 + b"\x90"),
    "half a million lists": record([[[]] * 60_000] * 9),
    "null": record(None),
    "half a token in the prompt": altered(lambda fields: fields["spans"][0].update(ids=b"abc")),
    "the result of another call": altered(lambda fields: fields["calls"][0]["result"].update(id="another")),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path)
    for each in STORED:
        writer.append(each)
    writer.close()
    return tmp_path


def replace_frame(folder: Path, number: int, payload: bytes) -> None:
    """Put another payload in the place of a stored trajectory's, and take the index away."""
    row, path = Archive(folder).rows[number], segment_path(folder, 0)
    data = path.read_bytes()
    path.write_bytes(data[: row.offset] + frame(payload) + data[row.end :])
    index_path(path).unlink()


@pytest.mark.parametrize("held", PAYLOADS)
def test_a_whole_frame_that_holds_no_trajectory_is_named_and_costs_no_other(folder: Path, held: str) -> None:
    assert STORED[1].calls, "there is one to alter"
    offset = Archive(folder).rows[1].offset
    replace_frame(folder, 1, PAYLOADS[held])
    archive, check = Archive(folder), check_archive(folder)
    assert [row.id for row in archive.rows] == [STORED[0].id, STORED[2].id]
    assert (check.trajectories, check.damaged) == (2, True)
    for (flaw,) in (archive.flaws, check.flaws):
        assert (flaw.offset, flaw.torn) == (offset, False)
        assert flaw.what.startswith("the frame is whole, but holds no ")
    assert list(archive.trajectories(on_damage=lambda _: None)) == [STORED[0], STORED[2]]
    with pytest.raises(ArchiveCorrupt, match=f"byte {offset}: the frame is whole"):
        write_indices(folder)


def test_a_tail_that_expands_without_an_end_is_damage(folder: Path) -> None:
    path = segment_path(folder, 0)
    payload = expanding(MOST_RECORD_BYTES + (1 << 24))
    path.write_bytes(path.read_bytes() + FRAME.pack(len(payload) + 100, 0) + payload)
    assert [flaw.torn for flaw in check_archive(folder).flaws] == [False]
    cut = SEGMENT_MAGIC + FRAME.pack(1000, 0) + packed(os.urandom(900))[:500]
    assert [type(found) for found in scan(cut, SEGMENT_MAGIC)] == [Torn]


def test_the_search_for_the_next_frame_is_given_up_where_everything_looks_like_one(folder: Path) -> None:
    path = segment_path(folder, 0)
    row, data = Archive(folder).rows[1], path.read_bytes()
    alike = (FRAME.pack(100_000, 0) + zstandard.FRAME_HEADER) * 20_000
    path.write_bytes(data[: row.offset] + alike + data[row.offset :])
    index_path(path).unlink()
    (flaw,) = check_archive(folder).flaws
    assert (flaw.offset, flaw.torn) == (row.offset, False)
    assert "too much of what follows looks like overlapping frames" in flaw.what
    assert list(Archive(folder).trajectories(on_damage=lambda _: None)) == [STORED[0]]


def test_a_record_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    file = FrameFile(tmp_path / "file", SEGMENT_MAGIC)
    with pytest.raises(ArchiveError, match=f"{MOST_RECORD_BYTES} is the most; lower limits.call.output_bytes"):
        file.pack(bytes(MOST_RECORD_BYTES))
    file.append(file.pack(bytes(1000)))
    file.close()


@pytest.mark.parametrize("header", [None, 5, [1], {}, {"schema": "1"}, {"schema": True}])
def test_a_segment_without_a_schema_is_refused(tmp_path: Path, header: Any) -> None:
    segment_path(tmp_path, 0).write_bytes(SEGMENT_MAGIC + frame(record(header)))
    with pytest.raises(ArchiveCorrupt, match=r"segment-00000.gra does not begin with its schema"):
        Archive(tmp_path)


COLUMN = {name: place for place, name in enumerate(IndexRow._fields)}


def saying(**values: Any) -> Callable[[list[list[Any]]], Any]:
    """A change of the second row."""
    return lambda rows: [rows[1].__setitem__(COLUMN[name], value) for name, value in values.items()]


@pytest.mark.parametrize(
    "change",
    [
        saying(reward="much"),
        saying(step=None),
        saying(correct=1),
        saying(id=["rl"]),
        saying(statuses=5),
        saying(statuses=[5]),
        saying(offset=-(1 << 62)),
        saying(end=-10),
        saying(end="far"),
        saying(segment=77),
        saying(segment="../../elsewhere"),
        lambda rows: rows[1].pop(),
        lambda rows: rows.__delitem__(1),
        lambda rows: rows.insert(1, rows[2]),
        lambda rows: rows.insert(1, None),
    ],
)
def test_an_index_that_says_what_can_not_be_is_used_up_to_there(folder: Path, change: Callable[..., Any]) -> None:
    rows = [list(row) for row in Archive(folder).rows]
    change(rows)
    header = {"schema": 1, "columns": IndexRow._fields}
    index = INDEX_MAGIC + b"".join(frame(record(each)) for each in (header, rows))
    index_path(segment_path(folder, 0)).write_bytes(index)
    archive = Archive(folder)
    assert list(archive.trajectories()) == STORED
    assert (archive.flaws, archive.unindexed) == ([], 2)


@pytest.mark.parametrize("records", [[5], [{"schema": 1, "columns": list(COLUMN)}, 5], [None]])
def test_a_file_in_the_place_of_an_index_that_is_none_is_ignored(folder: Path, records: list[Any]) -> None:
    frames = [frame(record(each)) for each in records]
    index_path(segment_path(folder, 0)).write_bytes(INDEX_MAGIC + b"".join([*frames, frame(CLAIMING)]))
    assert list(Archive(folder).trajectories()) == STORED


def test_a_row_that_gives_one_trajectory_for_another_is_named(folder: Path) -> None:
    first, second, *_ = Archive(folder).rows
    for false in (first._replace(id=second.id), first._replace(stage="another"), first._replace(group="another")):
        told = rf"\(trajectory {false.id}\): the index says otherwise of {STORED[0].id}, which it holds"
        with pytest.raises(ArchiveCorrupt, match=told):
            Archive(folder).read(false)


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, MOST_FILE_BYTES + 1)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), _endless])
def test_what_is_no_file_with_an_end_is_neither_a_segment_nor_an_index(folder: Path, make: Callable[..., None]) -> None:
    index = index_path(segment_path(folder, 0))
    index.unlink()
    make(index)
    assert list(Archive(folder).trajectories()) == STORED
    make(segment_path(folder, 1))
    with pytest.raises(ArchiveError, match=r"segment-00001.gra (is not a file|has \d+ bytes; no segment has more)"):
        Archive(folder)


def test_only_the_names_that_a_writer_gives_are_segments(folder: Path) -> None:
    for name in ("segment-000001.gra", "segment-٠٠٠٠١.gra", "segment-00001.gra\n"):
        (folder / name).write_bytes(segment_path(folder, 0).read_bytes())
    assert [each.id for each in _read(folder)] == [each.id for each in STORED]


def _read(folder: Path) -> list[Trajectory]:
    return list(Archive(folder).trajectories())
