"""The archive is readable after a crash, up to the last whole frame."""

from pathlib import Path

import pytest

from actors.archive import ArchiveCorrupt, SegmentWriter, read_archive
from tests.policies.test_trajectory import MODEL, PROMPT, TOOL, trajectory


def write(folder: Path, count: int) -> Path:
    writer = SegmentWriter(folder)
    for index in range(count):
        writer.append(trajectory(PROMPT, MODEL, TOOL, id=f"t{index}"))
    writer.close()
    return writer.path


def ids(folder: Path) -> list[str]:
    return [each.id for each in read_archive(folder)]


def test_what_was_stored_is_read_back_in_order(tmp_path: Path) -> None:
    write(tmp_path, 3)
    assert list(read_archive(tmp_path)) == [trajectory(PROMPT, MODEL, TOOL, id=f"t{index}") for index in range(3)]


def test_a_new_writer_begins_a_new_segment(tmp_path: Path) -> None:
    first, second = write(tmp_path, 2), write(tmp_path, 1)
    assert first != second
    assert ids(tmp_path) == ["t0", "t1", "t0"]


def test_a_segment_cut_anywhere_loses_at_most_its_torn_frame(tmp_path: Path) -> None:
    data = write(tmp_path, 3).read_bytes()
    whole = len(ids(tmp_path))
    seen = set()
    for cut in range(8, len(data)):
        (tmp_path / "segment-00000.gra").write_bytes(data[:cut])
        read = ids(tmp_path)
        assert read == [f"t{index}" for index in range(len(read))]
        seen.add(len(read))
    assert seen == set(range(whole))


def test_a_flipped_bit_before_the_end_is_found_and_placed(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveCorrupt, match=r"segment-00000.gra: the frame at byte \d+ fails its checksum"):
        ids(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "segment-00000.gra").write_bytes(b"not an archive at all")
    with pytest.raises(ArchiveCorrupt, match="does not begin as an archive segment"):
        ids(tmp_path)
