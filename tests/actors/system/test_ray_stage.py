"""The stage on a real local Ray: real processes, real deaths."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from actors.system.actor import ActorLost, ActorRef, BlobRef, HandlerFailed, seed_for
from actors.system.local_ray import LocalRay
from actors.system.ray_stage import RayStage
from actors.system.stage import ActorStartFailed, Part
from tests.actors.system.players import (
    AskFacts,
    BadlyMade,
    BadStarter,
    Block,
    Break,
    DiesAtStart,
    DropBlob,
    FailTask,
    Greeter,
    Hang,
    PassOn,
    Player,
    Said,
    Say,
    SayLater,
    Store,
    Sum,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PATIENCE_S = 60.0
"""Longer than anything here takes: tests say what happens, not how fast."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    ray_stage_factory: Callable[..., RayStage], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RayStage]:
    async with ray_stage_factory(seed=7, log_dir=tmp_path_factory.mktemp("logs"), grace_s=5) as stage:
        await stage.spawn(
            Part(name="anna", actor=Player, arguments={"greeting": "hello "}, threads=3, environment={"COLOUR": "red"}),
            Part(name="ben", actor=Player),
        )
        yield stage


ANNA, BEN = ActorRef("anna"), ActorRef("ben")


async def host_classes(stage: RayStage) -> int:
    """How many classes of hosts Ray has made in Ben's process."""
    return (await stage.port.ask(BEN, AskFacts(), deadline_s=PATIENCE_S)).facts["host_classes"]


async def eventually[T](attempt: Callable[[], Awaitable[T]]) -> T:
    """The first outcome of `attempt` that is not `ActorLost`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await attempt()
            except ActorLost:
                await asyncio.sleep(0.02)


async def test_actors_answer_the_driver_and_each_other(stage: RayStage) -> None:
    assert (await stage.port.ask(ANNA, Say(text="you"), deadline_s=PATIENCE_S)).text == "hello you"
    assert (await stage.port.ask(ANNA, SayLater(text="late", turns=3), deadline_s=PATIENCE_S)).text == "late"
    passed_on = await stage.port.ask(BEN, PassOn(to="anna", text="from ben"), deadline_s=PATIENCE_S)
    assert passed_on.text == "hello from ben"
    to_itself = await stage.port.ask(BEN, PassOn(to="ben", text="to myself"), deadline_s=PATIENCE_S)
    assert to_itself.text == "to myself"


async def test_three_thousand_asks_at_once_need_few_frames(stage: RayStage) -> None:
    link = stage._mailbox.link("ben")
    assert link is not None
    before = link.frames
    asks = (stage.port.ask(BEN, Say(text=str(serial).zfill(500))) for serial in range(3000))
    answers = await asyncio.gather(*asks)
    assert [int(answer.text) for answer in answers] == list(range(3000))
    assert link.frames - before <= 30


async def test_ray_keeps_no_record_of_each_frame(stage: RayStage) -> None:
    host = stage._cast.member(BEN).reference
    assert host._ray_enable_task_events is False


async def test_messages_of_any_size_arrive(stage: RayStage) -> None:
    for size in (0, 89_000, 200_000, 5_000_000):
        answer = await stage.port.ask(BEN, Say(text="x" * size), deadline_s=PATIENCE_S)
        assert len(answer.text) == size


async def test_a_failing_handler_is_told_and_logged(stage: RayStage) -> None:
    with pytest.raises(HandlerFailed, match="ZeroDivisionError: in another process"):
        await stage.port.ask(ANNA, Break(text="in another process"), deadline_s=PATIENCE_S)
    with pytest.raises(HandlerFailed, match="nobody"):
        await stage.port.ask(ANNA, PassOn(to="nobody", text="x"), deadline_s=PATIENCE_S)
    assert stage._log_dir is not None
    assert "ZeroDivisionError: in another process" in (stage._log_dir / "anna.log").read_text()


async def test_a_host_is_prepared_before_the_actor_is_imported(stage: RayStage) -> None:
    anna = (await stage.port.ask(ANNA, AskFacts(), deadline_s=PATIENCE_S)).facts
    ben = (await stage.port.ask(BEN, AskFacts(), deadline_s=PATIENCE_S)).facts
    assert (anna["omp"], ben["omp"]) == ("3", "1")
    assert (anna["seen_at_import"], ben["seen_at_import"]) == ("red", None)
    assert anna["loop"].startswith("uvloop")
    assert anna["luck"] == random.Random(seed_for(7, "anna")).random() != ben["luck"]
    assert len({*anna["ids"], *ben["ids"], stage.port.fresh_id()}) == 5
    assert anna["pid"] == stage.pid(ANNA) != stage.pid(BEN)
    assert anna["group"] != os.getpgid(0), "Ctrl-C in the driver's terminal must not reach it"


async def test_blocking_work_leaves_the_loop_free(stage: RayStage, tmp_path: Path) -> None:
    until = tmp_path / "go on"
    blocked = asyncio.ensure_future(stage.port.ask(BEN, Block(until=str(until))))
    assert (await stage.port.ask(BEN, Say(text="free"), deadline_s=PATIENCE_S)).text == "free"
    assert not blocked.done()
    until.touch()
    await asyncio.wait_for(blocked, PATIENCE_S)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
async def test_blobs_are_read_by_others_until_they_are_dropped(stage: RayStage, dtype: str) -> None:
    key = (await stage.port.ask(ANNA, Store(count=100_000, dtype=dtype), deadline_s=PATIENCE_S)).text
    import torch

    expected = int(torch.arange(100_000).to(getattr(torch, dtype)).double().sum())
    for reader in (ANNA, BEN):
        assert int((await stage.port.ask(reader, Sum(key=key), deadline_s=PATIENCE_S)).text) == expected
    mine = await stage.port.blobs.get(BlobRef(key))
    assert mine["weights"][0].dtype == getattr(torch, dtype)
    for _ in range(2):  # dropping twice is allowed
        await stage.port.ask(BEN, DropBlob(key=key), deadline_s=PATIENCE_S)
    with pytest.raises(HandlerFailed, match="KeyError"):
        await stage.port.ask(BEN, Sum(key=key), deadline_s=PATIENCE_S)
    with pytest.raises(KeyError):
        await stage.port.blobs.get(BlobRef(key))
    assert int(mine["weights"][0].double().sum()) == expected, "who looks at it keeps it"


async def test_dropping_frees_the_store(stage: RayStage) -> None:
    for _ in range(8):  # 8 x 200 MB do not fit into 512 MB at once
        key = (await stage.port.ask(ANNA, Store(count=50_000_000), deadline_s=PATIENCE_S)).text
        await stage.port.ask(BEN, Sum(key=key), deadline_s=PATIENCE_S)
        await stage.port.ask(ANNA, DropBlob(key=key), deadline_s=PATIENCE_S)
    assert LocalRay.open is not None and LocalRay.open.folder is not None
    assert not [path for path in LocalRay.open.folder.rglob("*spill*/*") if path.is_file()]


async def test_the_driver_s_blobs_are_read_by_actors(stage: RayStage) -> None:
    import torch

    ref = await stage.port.blobs.put({"weights": [torch.ones(1000)], "note": "numbers"})
    assert (await stage.port.ask(ANNA, Sum(key=ref.key), deadline_s=PATIENCE_S)).text == "1000"
    assert (await stage.port.blobs.get(ref))["note"] == "numbers"
    await stage.port.blobs.drop(ref)
    with pytest.raises(HandlerFailed, match="KeyError"):
        await stage.port.ask(ANNA, Sum(key=ref.key), deadline_s=PATIENCE_S)


async def test_a_death_is_noticed_and_followed_by_a_new_incarnation(stage: RayStage) -> None:
    heard: list[str] = []
    stage.on_death(lambda death: heard.append(death.name))
    (carl,) = await stage.spawn(Part(name="carl", actor=Player, restarts=1))
    assert (await stage.port.ask(BEN, PassOn(to="carl", text="x"), deadline_s=PATIENCE_S)).incarnation == 0
    key = (await stage.port.ask(carl, Store(count=10), deadline_s=PATIENCE_S)).text
    known = await host_classes(stage)
    hanging = asyncio.ensure_future(stage.port.ask(carl, Hang()))
    await stage.port.ask(carl, Say(text="x"), deadline_s=PATIENCE_S)
    os.kill(stage.pid(carl), signal.SIGKILL)
    with pytest.raises(ActorLost):
        await asyncio.wait_for(hanging, PATIENCE_S)
    again = await eventually(lambda: stage.port.ask(carl, Say(text="again"), deadline_s=PATIENCE_S))
    assert again == Said(text="again", incarnation=1)

    async def through_ben() -> Said:
        try:
            return await stage.port.ask(BEN, PassOn(to="carl", text="x"), deadline_s=PATIENCE_S)
        except HandlerFailed as error:
            assert "ActorLost" in str(error)
            raise ActorLost(str(error)) from error

    assert (await eventually(through_ben)).incarnation == 1
    assert await host_classes(stage) == known, "a peer's next incarnation is of the class that is known already"
    with pytest.raises(HandlerFailed, match="KeyError"):  # the blob died with its owner
        await stage.port.ask(BEN, Sum(key=key), deadline_s=PATIENCE_S)

    await stage.kill(carl)  # its restarts are used up
    with pytest.raises(ActorLost):
        await stage.port.ask(carl, Say(text="x"), deadline_s=PATIENCE_S)
    deaths = [(death.name, death.incarnation, death.restarting) for death in stage.deaths if death.name == "carl"]
    assert deaths == [("carl", 0, True), ("carl", 1, False)]
    assert heard.count("carl") == 2
    assert any("killed by `ray.kill`" in death.reason for death in stage.deaths)
    (carl,) = await stage.spawn(Part(name="carl", actor=Player))
    assert (await stage.port.ask(carl, Say(text="x"), deadline_s=PATIENCE_S)).incarnation == 2
    await stage.kill(carl)


async def test_frozen_and_terminated_processes_are_lost_too(stage: RayStage) -> None:
    frozen, terminated = await stage.spawn(Part(name="frozen", actor=Player), Part(name="terminated", actor=Player))
    asks = [asyncio.ensure_future(stage.port.ask(ref, Hang())) for ref in (frozen, terminated)]
    pids = [stage.pid(ref) for ref in (frozen, terminated)]
    await asyncio.sleep(0.1)
    os.kill(pids[0], signal.SIGSTOP)
    await stage.kill(frozen)
    os.kill(pids[1], signal.SIGTERM)
    for ask in asks:
        with pytest.raises(ActorLost):
            await asyncio.wait_for(ask, PATIENCE_S)


async def test_a_task_that_fails_ends_its_actor_with_the_reason(stage: RayStage) -> None:
    (dora,) = await stage.spawn(Part(name="dora", actor=Player))
    hanging = asyncio.ensure_future(stage.port.ask(dora, Hang()))
    await stage.port.ask(dora, FailTask(text="the task broke"), deadline_s=PATIENCE_S)
    with pytest.raises(ActorLost):
        await asyncio.wait_for(hanging, PATIENCE_S)
    assert "RuntimeError: the task broke" in stage.deaths[-1].reason
    assert stage._log_dir is not None
    assert "RuntimeError: the task broke" in (stage._log_dir / "dora.log").read_text()


async def test_one_failed_start_ends_all_that_were_started_with_it(stage: RayStage) -> None:
    before = _hosts()
    assert {stage.pid(ANNA), stage.pid(BEN)} <= before
    good = Part(name="good", actor=Player)
    for bad, message in [
        (Part(name="bad", actor=BadlyMade), r"bad could not be made[\s\S]*ValueError: made of nothing"),
        (Part(name="bad", actor=BadStarter), r"bad could not start[\s\S]*ValueError: stage fright"),
        (Part(name="bad", actor=DiesAtStart), r"bad died while it started[\s\S]*bad\.log"),
    ]:
        with pytest.raises(ActorStartFailed, match=message):
            await stage.spawn(good, bad)
        assert _hosts() <= before
        with pytest.raises(ActorLost):
            await stage.port.ask(ActorRef("good"), Say(text="x"), deadline_s=PATIENCE_S)
    assert "bad" not in [death.name for death in stage.deaths]


async def test_a_restart_that_fails_is_tried_as_often_as_the_part_allows(stage: RayStage, tmp_path: Path) -> None:
    marker = tmp_path / "fail from now on"
    part = Part(name="emil", actor=BadStarter, arguments={"marker": str(marker)}, restarts=2)
    (emil,) = await stage.spawn(part)
    marker.touch()
    ended = asyncio.Event()
    stage.on_death(lambda death: ended.set() if death.name == "emil" and not death.restarting else None)
    await stage.kill(emil)
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    reports = [(death.incarnation, death.restarting) for death in stage.deaths if death.name == "emil"]
    assert reports == [(0, True), (1, True), (2, False)]
    assert "stage fright" in stage.deaths[-1].reason


async def test_actors_may_talk_while_they_start(stage: RayStage) -> None:
    (late,) = await stage.spawn(Part(name="late", actor=Greeter, arguments={"peer": "anna"}))
    assert (await stage.port.ask(late, Say(text="?"), deadline_s=PATIENCE_S)).text == "hello early"
    first, _ = await stage.spawn(
        Part(name="first", actor=Greeter, arguments={"peer": "second"}), Part(name="second", actor=Player)
    )
    assert (await stage.port.ask(first, Say(text="?"), deadline_s=PATIENCE_S)).text == "early"
    for name in ("late", "first", "second"):
        await stage.kill(ActorRef(name))


async def test_an_actor_that_can_not_be_is_refused_before_anything_starts(stage: RayStage) -> None:
    class Local(Player):
        pass

    for part, message in [
        (Part(name="anna", actor=Player), "'anna' is taken"),
        (Part(name="driver", actor=Player), "'driver' is taken"),
        (Part(name="a/b", actor=Player), "holds a '/'"),
        (Part(name="local", actor=Local), "can't be imported"),
        (Part(name="huge", actor=Player, cpus=1000), r"huge finds no place: each needs 1000 CPU; .* \(home\): 16 CPU"),
    ]:
        with pytest.raises(ValueError, match=message):
            await stage.spawn(Part(name="innocent", actor=Player), part)
    with pytest.raises(LookupError, match="nobody"):
        await stage.kill(ActorRef("nobody"))


async def test_a_closing_stage_lets_its_actors_stop_and_ends_their_processes(
    ray_stage_factory: Callable[..., RayStage], tmp_path: Path
) -> None:
    left = tmp_path / "left"
    async with ray_stage_factory(grace_s=10) as stage:
        refs = await stage.spawn(
            Part(name="fritz", actor=Player, arguments={"leave": str(left)}), Part(name="gerda", actor=Player)
        )
        pids = [stage.pid(ref) for ref in refs]
        hanging = asyncio.ensure_future(stage.port.ask(refs[1], Hang()))
        await stage.port.ask(refs[1], Say(text="x"), deadline_s=PATIENCE_S)
    with pytest.raises(ActorLost):
        await hanging
    assert left.read_text() == "fritz"
    assert not any(map(_lives, pids))
    await stage.close()  # again
    with pytest.raises(ValueError, match="closed"):
        await stage.spawn(Part(name="late", actor=Player))


def _hosts() -> set[int]:
    """Pids of the processes that host actors now."""
    return {
        child.pid for child in psutil.Process().children(recursive=True) if _lives(child.pid) and _hosts_actor(child)
    }


def _hosts_actor(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::Host")
    except psutil.NoSuchProcess:
        return False


def _lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected by its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_an_actor_that_answers_nothing_is_killed_and_started_again(
    ray_stage_factory: Callable[..., RayStage],
) -> None:
    async with ray_stage_factory(seed=8, name="frozen", grace_s=5, frozen_after_s=6.0) as other:
        (dora,) = await other.spawn(Part(name="dora", actor=Player, restarts=3))
        os.kill(other.pid(dora), signal.SIGSTOP)
        again = await eventually(lambda: other.port.ask(dora, Say(text="again"), deadline_s=PATIENCE_S))
        assert again.text == "again" and again.incarnation > 0
        assert other.deaths[0].reason == "it answered nothing for 6 s, and was killed"
