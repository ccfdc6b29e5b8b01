"""The archive is read back as it was written; what a crash or a bad disk did to it is named, and costs nothing else."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.storage.check import check_archive, write_indices
from actors.storage.frames import ArchiveCorrupt, ArchiveError, ArchiveInUse, Damaged, Frame, FrameFile, Torn, scan
from actors.storage.index import ROWS_PER_FRAME, index_path
from actors.storage.reader import Archive, read_archive, segment_path
from actors.storage.writer import ArchiveWriter
from policies.trajectory import Trajectory
from tests.actors.storage.samples import random_trajectory

PROJECT = Path(__file__).resolve().parents[3]
FIRST = "segment-00000.gra"


def write(folder: Path, trajectories: list[Trajectory], segment_bytes: int = 1 << 20) -> Path:
    writer = ArchiveWriter(folder, segment_bytes)
    for each in trajectories:
        writer.append(each)
    writer.close()
    return folder / FIRST


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with the folder as its argument."""
    command = [sys.executable, "-c", code, folder]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=PROJECT)


@pytest.fixture(scope="module")
def stored() -> list[Trajectory]:
    return [random_trajectory(serial) for serial in range(150)]


def test_what_was_stored_is_read_back_in_order(tmp_path: Path, stored: list[Trajectory]) -> None:
    write(tmp_path, stored, segment_bytes=20_000)
    assert segment_path(tmp_path, 2).exists()
    assert list(read_archive(tmp_path)) == stored
    archive = Archive(tmp_path)
    assert list(archive.trajectories()) == stored
    assert (archive.flaws, archive.unindexed) == ([], 0)


def test_a_row_tells_what_its_trajectory_holds(tmp_path: Path, stored: list[Trajectory]) -> None:
    write(tmp_path, stored)
    for row, each in zip(Archive(tmp_path).rows, stored, strict=True):
        assert (row.id, row.group, row.sample, row.stage, row.step) == (
            each.id,
            each.group,
            each.sample,
            each.stage,
            each.step,
        )
        assert (row.problem, row.family, row.reward) == (each.problem.id, each.problem.family, each.reward)
        assert row.statuses == tuple(call.result.status for call in each.calls)
        assert row.prompt_tokens * 4 == len(each.spans[0].ids)
        assert row.model_tokens * 4 == sum(len(span.logprobs) for span in each.spans)
        assert row.response_tokens * 4 == sum(len(span.ids) for span in each.spans[1:])


def test_rows_come_from_the_index_alone(tmp_path: Path, stored: list[Trajectory]) -> None:
    path = write(tmp_path, stored)
    path.write_bytes(bytes(path.stat().st_size))  # a segment of the same size that holds nothing
    archive = Archive(tmp_path)
    assert [row.id for row in archive.rows] == [each.id for each in stored]
    with pytest.raises(ArchiveCorrupt, match=rf"{FIRST}, byte \d+ \(trajectory {stored[7].id}\)"):
        archive.read(archive.rows[7])


@pytest.mark.parametrize("kept_index", ["whole", "cut", "garbled", "none"])
def test_what_the_index_lacks_is_read_from_the_segment(
    tmp_path: Path, stored: list[Trajectory], kept_index: str
) -> None:
    index = index_path(write(tmp_path, stored))
    data = bytearray(index.read_bytes())
    if kept_index == "none":
        index.unlink()
    elif kept_index == "cut":
        index.write_bytes(data[: len(data) // 2])
    elif kept_index == "garbled":
        data[len(data) // 2] ^= 4
        index.write_bytes(data)
    archive = Archive(tmp_path)
    assert list(archive.trajectories()) == stored
    assert (archive.unindexed > 0) == (kept_index != "whole")
    assert check_archive(tmp_path).segments[0].unindexed == archive.unindexed
    write_indices(tmp_path)
    assert Archive(tmp_path).unindexed == 0
    assert Archive(tmp_path).rows == archive.rows


def test_a_killed_writer_loses_nothing_that_append_returned_from(tmp_path: Path) -> None:
    count = ROWS_PER_FRAME + 10
    code = (
        "import os, sys; from pathlib import Path; from actors.storage.writer import ArchiveWriter\n"
        "from tests.actors.storage.samples import random_trajectory\n"
        "writer = ArchiveWriter(Path(sys.argv[1]))\n"
        f"for serial in range({count}): writer.append(random_trajectory(serial))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert run(code, tmp_path).returncode == -9
    archive = Archive(tmp_path)
    assert list(archive.trajectories()) == [random_trajectory(serial) for serial in range(count)]
    assert archive.unindexed == 10
    write(tmp_path, [random_trajectory(0), random_trajectory(count)])  # the lock went with the process
    assert [row.id for row in Archive(tmp_path).rows][count:] == [random_trajectory(count).id]


@pytest.mark.parametrize("with_index", [True, False])
def test_an_archive_cut_at_random_positions_opens_and_loses_at_most_the_torn_frame(
    tmp_path: Path, stored: list[Trajectory], with_index: bool
) -> None:
    path = write(tmp_path, stored[:30])
    data = path.read_bytes()
    rows = Archive(tmp_path).rows
    ends = [found.end for found in scan(data, data[:8]) if isinstance(found, Frame)]
    if not with_index:
        index_path(path).unlink()
    draw = random.Random(7)
    for cut in [0, 1, 8, *(draw.randrange(len(data)) for _ in range(1000))]:
        path.write_bytes(data[:cut])
        archive = Archive(tmp_path)
        assert archive.rows == [row for row in rows if row.end <= cut]
        lost = [row.id for row in rows if row.end > cut] if with_index else []
        if cut in ends:  # between two frames: nothing is torn, and only the index can know that more was there
            assert [flaw.torn for flaw in archive.flaws] == [True] * bool(lost)
        else:
            (flaw,) = archive.flaws
            assert flaw.torn and flaw.end == cut
            assert flaw.offset == max((end for end in [0, *ends] if end < cut), default=0)
        assert [each for flaw in archive.flaws for each in flaw.ids] == lost
    path.write_bytes(data[: rows[20].end + 5])
    assert list(read_archive(tmp_path)) == stored[:21]
    assert [flaw.torn for flaw in check_archive(tmp_path).flaws] == [True]


def test_any_flipped_bit_is_found_and_named_and_costs_one_trajectory(tmp_path: Path, stored: list[Trajectory]) -> None:
    path = write(tmp_path, stored[:12])
    data = path.read_bytes()
    rows = Archive(tmp_path).rows
    draw = random.Random(3)
    frame_headers = [row.offset + byte for row in rows for byte in range(8)]
    for position in [*range(8), *frame_headers, *(draw.randrange(len(data)) for _ in range(300))]:
        flipped = bytearray(data)
        flipped[position] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        check = check_archive(tmp_path)
        assert check.damaged
        (flaw,) = check.flaws
        hit = [row for row in rows if row.offset <= position < row.end]
        assert flaw.segment == FIRST
        assert flaw.ids == tuple(row.id for row in hit)
        assert flaw.offset <= position < flaw.end
        assert check.trajectories == len(rows) - len(hit)
        for row in hit:
            assert flaw.offset == row.offset
            with pytest.raises(ArchiveCorrupt, match=rf"byte {row.offset} \(trajectory {row.id}\)"):
                Archive(tmp_path).read(row)
        with pytest.raises(ArchiveCorrupt, match=rf"{FIRST}, byte {flaw.offset}"):
            list(read_archive(tmp_path))


def test_without_an_index_a_flipped_bit_is_still_placed(tmp_path: Path, stored: list[Trajectory]) -> None:
    path = write(tmp_path, stored[:5])
    row = Archive(tmp_path).rows[2]
    index_path(path).unlink()
    data = bytearray(path.read_bytes())
    data[row.offset + 1] ^= 0x80  # the frame's length now reaches far beyond the file's end
    path.write_bytes(data)
    archive = Archive(tmp_path)
    assert [each.id for each in archive.rows] == [each.id for n, each in enumerate(stored[:5]) if n != 2]
    assert [(flaw.offset, flaw.end, flaw.torn) for flaw in archive.flaws] == [(row.offset, row.end, False)]
    with pytest.raises(ArchiveCorrupt, match=f"byte {row.offset}: the frame fails its checksum"):
        list(archive.trajectories())
    told: list[ArchiveCorrupt] = []
    assert len(list(archive.trajectories(on_damage=told.append))) == 4
    assert told == []  # it is in `flaws`


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path, stored: list[Trajectory]) -> None:
    path = write(tmp_path, stored[:3])
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert list(read_archive(tmp_path)) == stored[:3]
    assert [flaw.torn for flaw in check_archive(tmp_path).flaws] == [True]


def test_what_is_no_model_is_not_stored_by_its_attributes(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a record holds a ArchiveError"):
        FrameFile(tmp_path / "file", b"MAGICMAG").pack({"verdict": ArchiveError("no trajectory")})


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_every_byte_of_a_file_is_accounted_for(tmp_path_factory, records: list[bytes], data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("frames") / "file"
    file = FrameFile(path, b"MAGICMAG")
    for record in records:
        file.append(file.pack(record))
    file.close()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    content = content[: data.draw(st.integers(0, len(content)))]
    position = 0
    for found in scan(bytes(content), b"MAGICMAG"):
        assert isinstance(found, Frame | Damaged | Torn)
        if position == 0 and found.offset == 8:
            position = 8  # the magic
        assert found.offset == position
        position = found.end
    assert position == len(content)


def test_a_second_writer_is_refused_and_the_first_is_named(tmp_path: Path, stored: list[Trajectory]) -> None:
    writer = ArchiveWriter(tmp_path)
    for again in (lambda: ArchiveWriter(tmp_path), lambda: write_indices(tmp_path)):
        with pytest.raises(ArchiveInUse, match=r"is being written to by process \d+"):
            again()
    done = run("import sys, pathlib, actors.storage.writer as w; w.ArchiveWriter(pathlib.Path(sys.argv[1]))", tmp_path)
    assert done.returncode == 1 and "ArchiveInUse" in done.stderr
    writer.append(stored[0])
    writer.close()
    ArchiveWriter(tmp_path).close()
    assert list(read_archive(tmp_path)) == stored[:1]


def test_a_repeat_is_dropped_but_another_attempt_under_the_same_id_is_kept(tmp_path: Path) -> None:
    first = random_trajectory(0)
    other = random_trajectory(1).model_copy(update={"id": first.id})
    write(tmp_path, [first, first, other])
    write(tmp_path, [other, first])
    assert list(read_archive(tmp_path)) == [first, other]
    assert check_archive(tmp_path).repeated == {first.id: 2}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: a write that would fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_and_tears_nothing(tmp_path: Path, stored: list[Trajectory]) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.append(stored[0])
    with files_of_at_most(writer.path.stat().st_size + 100), pytest.raises(OSError, match="File too large"):
        writer.append(stored[1])
    assert list(read_archive(tmp_path)) == stored[:1]
    assert check_archive(tmp_path).flaws == []
    writer.append(stored[1])  # there is room again
    writer.append(stored[2])
    writer.close()
    assert list(read_archive(tmp_path)) == stored[:3]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(b"not an archive at all")
    with pytest.raises(ArchiveCorrupt, match="byte 0: the file does not begin with GREENRM1"):
        list(read_archive(tmp_path))


def test_a_schema_of_another_version_is_refused(tmp_path: Path) -> None:
    file = FrameFile(tmp_path / FIRST, b"GREENRM1")
    file.append(file.pack({"schema": 99}))
    file.close()
    for use in (Archive, check_archive, lambda folder: list(read_archive(folder))):
        with pytest.raises(ArchiveCorrupt, match=r"segment-00000.gra has schema 99; this version reads schema 1"):
            use(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive at"):
        Archive(tmp_path / "nowhere")


def test_a_run_s_folder_is_not_taken_for_an_empty_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    with pytest.raises(ArchiveError, match=r"holds no segments; the archive is in \S+/archive"):
        Archive(tmp_path)
    assert Archive(tmp_path / "archive").rows == []  # a run that has only begun
