"""The archive actor stores each trajectory once, is the only writer of its folder, and rotates."""

import resource
from pathlib import Path

import pytest

from actors.archive import ArchiveActor
from actors.messages import (
    CutTrainedSteps,
    DescribeArchive,
    FindRollouts,
    ReadRollout,
    RecordTrainedStep,
    SettleArchive,
    StoreTrajectory,
)
from actors.storage.frames import ArchiveInUse
from actors.storage.reader import read_archive, segments
from actors.storage.trained_steps import FILE, read_trained_steps
from actors.system.actor import ActorRef, CannotGoOn
from policies.trajectory import WeightsVersion
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


async def test_rollouts_are_found_if_the_weights_asked_for_sampled_all_of_them(tmp_path: Path) -> None:
    old, new = (MODEL.model_copy(update={"version": WeightsVersion(0, step)}) for step in (3, 4))
    stored = {
        "rl/7/0/0": trajectory(PROMPT, old, TOOL, old, id="rl/7/0/0", stage="rl", step=7),
        "rl/7/0/1": trajectory(PROMPT, old, TOOL, new, id="rl/7/0/1", stage="rl", step=7),
        "rl/7/0/2": trajectory(PROMPT, old, id="rl/7/0/2", stage="rl", step=7, finish="sandbox_failure"),
        "rl/8/0/0": trajectory(PROMPT, old, id="rl/8/0/0", stage="rl", step=8),
    }
    async with InProcessStage() as stage:
        archive = await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
        for each in stored.values():
            await stage.port.ask(archive, StoreTrajectory(trajectory=each))

        async def found(*versions: WeightsVersion) -> tuple[str, ...]:
            return (await stage.port.ask(archive, FindRollouts(stage="rl", step=7, versions=versions))).ids

        assert await found(WeightsVersion(0, 3)) == ("rl/7/0/0",)
        assert await found(WeightsVersion(1, 3)) == ()
        assert await found(WeightsVersion(0, 3), WeightsVersion(0, 4)) == ("rl/7/0/0", "rl/7/0/1")
        read = (await stage.port.ask(archive, ReadRollout(id="rl/7/0/1"))).trajectory
        assert read == stored["rl/7/0/1"]


async def test_settling_tells_how_much_there_is_and_later_writers_count_on(tmp_path: Path) -> None:
    def step(number: int) -> RecordTrainedStep:
        return RecordTrainedStep(
            stage="rl", step=number, version=WeightsVersion(0, number), groups=(), taken=(), digest=""
        )

    for ids, steps, expected in ((("a", "b"), (1,), (2, 1)), (("b", "c"), (1, 2), (3, 2))):
        async with InProcessStage() as stage:
            archive = await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
            await store(stage, *ids)
            for number in steps:
                await stage.port.ask(archive, step(number))
            position = (await stage.port.ask(archive, SettleArchive())).position
            assert (position.trajectories, position.trained_steps) == expected


async def test_full_segments_are_followed_by_new_ones(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        await stage.host("archive", ArchiveActor(folder=str(tmp_path), segment_bytes=1000))
        await store(stage, *(f"t{index}" for index in range(12)))
    assert len(segments(tmp_path)) > 2
    assert [each.id for each in read_archive(tmp_path)] == [f"t{index}" for index in range(12)]


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


async def test_a_file_system_that_takes_no_more_is_told_of_and_what_was_stored_stays(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        archive = await stage.host("archive", ArchiveActor(folder=str(tmp_path)))
        await store(stage, "a")
        ((_, segment),) = segments(tmp_path)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (segment.stat().st_size + 10, before[1]))
        try:
            with pytest.raises(CannotGoOn, match=f"^{tmp_path} can't be written to .File too large."):
                await stage.port.ask(archive, StoreTrajectory(trajectory=trajectory(PROMPT, MODEL, id="b")))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await store(stage, "b")
        assert [each.id for each in read_archive(tmp_path)] == ["a", "b"]


async def test_an_archive_that_was_started_again_goes_on_where_the_dead_one_was(tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        dead = ArchiveActor(folder=str(tmp_path))
        await stage.host("archive", dead)
        await store(stage, "a", "b")
        record = RecordTrainedStep(stage="rl", step=0, version=WeightsVersion(0, 1), groups=(), taken=(), digest="")
        await stage.port.ask(ActorRef("archive"), record)
        dead.vanish()
        (tmp_path / FILE).open("a").write('{"torn')
        archive = await stage.host("archive", ArchiveActor(folder=str(tmp_path)), incarnation=1)
        await store(stage, "b", "c")  # "b" had not been acknowledged
        assert sorted(each.id for each in read_archive(tmp_path)) == ["a", "b", "c"]
        await stage.port.ask(archive, record.model_copy(update={"step": 1, "version": WeightsVersion(0, 2)}))
        await stage.port.ask(archive, CutTrainedSteps(count=1))
        assert [line["step"] for line in read_trained_steps(tmp_path / FILE)] == [0]
