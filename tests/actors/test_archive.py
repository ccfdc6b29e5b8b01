"""The archive actor stores each trajectory once, is the only writer of its folder, and rotates."""

from pathlib import Path

import pytest

from actors.archive import ArchiveActor
from actors.messages import DescribeArchive, StoreTrajectory
from actors.storage.frames import ArchiveInUse
from actors.storage.reader import read_archive, segments
from actors.system.actor import ActorRef
from tests.policies.test_trajectory import MODEL, PROMPT, TOOL, trajectory
from tests.support.in_process_stage import InProcessStage


async def store(stage: InProcessStage, *ids: str) -> None:
    for each in ids:
        await stage.port.ask(ActorRef("archive"), StoreTrajectory(trajectory=trajectory(PROMPT, MODEL, TOOL, id=each)))


async def test_what_was_answered_for_is_on_disk_and_repeats_are_not(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
        await store(stage, "a", "b", "a")
        assert [each.id for each in read_archive(tmp_path)] == ["a", "b"]
        status = await stage.port.ask(ActorRef("archive"), DescribeArchive())
    assert status.trajectories == 2
    assert status.bytes_written == sum(path.stat().st_size for _, path in segments(tmp_path))


async def test_full_segments_are_followed_by_new_ones(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        await stage.host("archive", ArchiveActor(folder=str(tmp_path), segment_bytes=1000))
        await store(stage, *(f"t{index}" for index in range(12)))
        status = await stage.port.ask(ActorRef("archive"), DescribeArchive())
    assert len(segments(tmp_path)) > 2
    assert [each.id for each in read_archive(tmp_path)] == [f"t{index}" for index in range(12)]
    assert status.bytes_written == sum(path.stat().st_size for _, path in segments(tmp_path))


async def test_a_second_archive_actor_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
        with pytest.raises(ArchiveInUse, match="is being written to by process"):
            await stage.host("other", ArchiveActor(folder=str(tmp_path)))


async def test_an_archive_actor_that_was_restarted_drops_what_its_predecessor_stored(tmp_path: Path) -> None:
    for stored in (("a", "b"), ("b", "c")):
        async with InProcessStage() as stage:
            await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
            await store(stage, *stored)
    assert [each.id for each in read_archive(tmp_path)] == ["a", "b", "c"]
