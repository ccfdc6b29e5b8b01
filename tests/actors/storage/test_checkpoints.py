"""Checkpoints: whole or not there, whatever interrupts the writing and whatever a disk does to them."""

import random
from pathlib import Path

import pytest

from actors.storage.checkpoints import (
    CheckpointDamaged,
    newest_checkpoint,
    read_checkpoint,
    set_aside_damaged,
    write_checkpoint,
)
from actors.storage.disk import CannotWrite
from policies.run_progress import RunProgress, StagePosition
from policies.trajectory import WeightsVersion


def progress(step: int) -> RunProgress:
    return RunProgress(version=WeightsVersion(0, step), current=StagePosition(stage="rl", steps=step, cursor=12 * step))


def write(folder: Path, step: int, keep: int = 3) -> Path:
    def files(partial: Path) -> None:
        (partial / "learner").write_bytes(random.Random(step).randbytes(1000))

    return write_checkpoint(folder, progress(step), files, keep)


def test_the_newest_one_is_read_with_what_it_says(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    found, faults = newest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress(2) and faults == []
    assert (found.path / "learner").read_bytes() == random.Random(2).randbytes(1000)


def test_old_ones_are_pruned_and_numbers_only_rise(tmp_path: Path) -> None:
    names = [write(tmp_path, step, keep=2).name for step in range(1, 6)]
    assert names == ["000001", "000002", "000003", "000004", "000005"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004", "000005"]


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") == (None, [])
    assert newest_checkpoint(tmp_path) == (None, [])


@pytest.mark.parametrize("name", ["learner", "progress.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "missing", "emptied"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path: Path, name: str, harm: str) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    file = tmp_path / "000002" / name
    content = file.read_bytes()
    if harm == "missing":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "emptied":
        file.write_bytes(b"")
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :])
    found, faults = newest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress(1)
    assert len(faults) == 1 and "000002" in faults[0]


def test_a_damaged_one_is_set_aside_and_never_counts_again(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path, step, keep=2)
    (tmp_path / "000002" / "learner").unlink()
    found, _ = newest_checkpoint(tmp_path)
    set_aside_damaged(tmp_path, found)
    assert write(tmp_path, 3, keep=2).name == "000003"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002.damaged", "000003"]


@pytest.mark.parametrize("when", ["before", "half", "unnamed"])
def test_a_death_while_one_is_written_leaves_the_one_before(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for SIGKILL: nothing is cleaned up after it."""

    write(tmp_path, 1)

    def dies(partial: Path) -> None:
        if when == "before":
            raise Killed
        (partial / "learner").write_bytes(b"half")
        if when == "half":
            raise Killed

    def no_rename(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", no_rename)
        write_checkpoint(tmp_path, progress(2), dies, 3)
    found, faults = newest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress(1) and faults == []
    write(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002"], "leftovers are gone"


def test_a_full_disk_costs_no_checkpoint(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "half").write_bytes(b"what there was room for")
        raise OSError(28, "No space left on device")

    write(tmp_path, 1, keep=1)
    with pytest.raises(CannotWrite, match=f"{tmp_path} can't be written to .No space left on device."):
        write_checkpoint(tmp_path, progress(2), full, 1)
    found, _ = newest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress(1)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"], "what was half written makes room again"


def test_a_checkpoint_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(CheckpointDamaged, match="has format 9"):
        read_checkpoint(path)
