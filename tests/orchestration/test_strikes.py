"""What a striker does to actors that are small processes of this test; on Ray: tests/system/test_deaths_on_ray.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.links import PeerDied
from actors.system.ray_stage import RayStage
from env.cgroup_hierarchy import find_hierarchy
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall
from orchestration.strikes import Strike, Striker, check_plan
from tests.support.waiting import until


class Frames:
    """What a striker asks of a stage, as far as messages go: `told` gets frames, `quiet` none, `dying` dies once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def runs(self, ref: ActorRef) -> bool:
        return True

    def pid(self, ref: ActorRef) -> int:
        return os.getpid()

    def incarnation(self, ref: ActorRef) -> int:
        return 0

    async def disturb(self, ref: ActorRef, kind: Any, frames: int, seconds: float) -> None:
        self.asked.append((ref.name, kind, frames))
        if ref.name == "quiet":
            await asyncio.Event().wait()
        if ref.name == "dying":
            raise PeerDied("of another fault")


async def struck(asks: int, *faults: ActorFault) -> tuple[Frames, Striker]:
    """Carry a plan out until so many actors' frames were asked for, and then long enough for another."""
    stage, names = Frames(), ["told", "quiet", "dying"]
    plan = ActorFaultPlan(faults=faults)
    striker = Striker(cast(RayStage, stage), plan, names, 0, folder=Path("none"), counters=dict)
    striking = asyncio.create_task(striker.run())
    await until(lambda: len(stage.asked) >= asks)
    await asyncio.sleep(0.1)
    striking.cancel()
    await asyncio.gather(striking, return_exceptions=True)
    await striker.settle(0.0)
    return stage, striker


async def test_messages_that_were_hit_are_proof_and_those_that_died_with_their_actor_are_not() -> None:
    faults = (
        ActorFault(kind="drop", at=0, actor="told", messages=3),
        ActorFault(kind="double", at=0, actor="dying", messages=2),
    )
    stage, striker = await struck(2, *faults)
    assert stage.asked == [("told", "drop", 3), ("dying", "double", 2)]
    assert {each.actor: (each.confirmed, each.outcome) for each in striker.strikes} == {
        "told": (True, "recovered"),
        "dying": (False, "recovered"),
    }
    assert not striker.never


async def test_a_fault_whose_messages_do_not_come_has_not_happened_and_is_not_repeated_meanwhile() -> None:
    fault = ActorFault(kind="delay", at=0, every=0.02, actor="quiet")
    stage, striker = await struck(1, fault)
    assert stage.asked == [("quiet", "delay", 1)]
    assert striker.strikes == [] and list(striker.never) == [str(fault)]


class Processes:
    """What a striker asks of a stage, as far as processes go: actors are processes, each on a node of its own."""

    own_node = "node of actor-0"

    def __init__(self, **pids: int) -> None:
        self.pids, self.incarnations = pids, dict.fromkeys(pids, 0)

    def runs(self, ref: ActorRef) -> bool:
        return psutil.pid_exists(self.pids[ref.name])

    def pid(self, ref: ActorRef) -> int:
        return self.pids[ref.name]

    def incarnation(self, ref: ActorRef) -> int:
        return self.incarnations[ref.name]

    def node(self, ref: ActorRef) -> str:
        return f"node of {ref.name}"


@asynccontextmanager
async def striking(stage: Processes, folder: Path, *faults: ActorFault) -> AsyncIterator[Striker]:
    plan = ActorFaultPlan(faults=faults)
    striker = Striker(cast(RayStage, stage), plan, list(stage.pids), 0, folder=folder, counters=dict)
    task = asyncio.create_task(striker.run())
    try:
        yield striker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await striker.settle(0.0)


async def ended(striker: Striker) -> Strike:
    """The only strike of a plan, when it has been made good."""
    await until(lambda: striker.strikes and striker.strikes[0].outcome == "recovered")
    return striker.strikes[0]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


async def test_a_slow_actor_is_seen_stopped_and_has_recovered_when_it_runs_as_before(sleeper, tmp_path: Path) -> None:
    fault = ActorFault(kind="slow", at=0, actor="learner", seconds=0.5, times=2)
    async with striking(Processes(learner=sleeper.pid), tmp_path, fault) as striker:
        strike = await ended(striker)
    assert (strike.confirmed, strike.outcome, strike.pid) == (True, "recovered", sleeper.pid)
    assert strike.process_started == psutil.Process(sleeper.pid).create_time()
    assert strike.figures["turns"] >= 1 and strike.recovery_s is not None and strike.recovery_s >= 0.5
    assert psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED
    assert not striker.never


async def test_all_actors_of_a_slow_node_are_slow_and_those_of_others_are_not(sleeper, tmp_path: Path) -> None:
    stage = Processes(learner=sleeper.pid, balancer=os.getpid())  # to stop this process would end the test
    fault = ActorFault(kind="slow", at=0, actor="learner", process="node", seconds=0.3)
    async with striking(stage, tmp_path, fault) as striker:
        strike = await ended(striker)
    assert strike.confirmed and strike.figures["processes"] == 1


async def test_what_is_slow_when_the_run_ends_is_let_go(sleeper, tmp_path: Path) -> None:
    fault = ActorFault(kind="slow", at=0, actor="learner", seconds=1000)
    async with striking(Processes(learner=sleeper.pid), tmp_path, fault) as striker:
        await until(lambda: striker.strikes)
    assert striker.strikes[0].confirmed and striker.strikes[0].outcome == "until the end"
    assert psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of that name, and the pid of one that it has started."""
    program = tmp_path / "raylet"
    program.symlink_to("/bin/sh")
    process = subprocess.Popen([program, "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    actor = psutil.Process(int(process.stdout.readline()))
    yield process, actor.pid
    actor.kill()
    process.kill()
    process.communicate()


async def test_the_raylet_of_another_node_is_killed_and_our_own_never(raylet, tmp_path: Path) -> None:
    process, actor = raylet
    fault = ActorFault(kind="kill", at=0, actor="actor-*", process="raylet")
    async with striking(Processes(**{"actor-0": actor}), tmp_path, fault) as striker:
        await asyncio.sleep(0.3)
    assert process.poll() is None and list(striker.never) == [str(fault)]
    stage = Processes(**{"actor-1": actor})
    async with striking(stage, tmp_path, fault) as striker:
        assert await asyncio.to_thread(process.wait) == -9
        stage.incarnations["actor-1"] += 1  # it plays again, elsewhere
        strike = await ended(striker)
    assert (strike.pid, strike.confirmed, strike.outcome) == (process.pid, True, "recovered")


@pytest.mark.skipif(find_hierarchy() is None, reason="this host lets us make no cgroups")
async def test_a_squeezed_sandbox_is_seen_killed_in_and_has_its_memory_back(tmp_path: Path) -> None:
    pool = Interpreters(Limits(), workers=1, run_id="squeezed")
    call = ToolCall(id="c", code="x = [str(i) for i in range(300_000)]", limits=Limits(wall_seconds=30))
    fault = ActorFault(kind="squeeze", at=0, actor="environment-0", seconds=0.1)
    try:
        stage = Processes(**{"environment-0": os.getpid()})
        async with striking(stage, tmp_path, fault) as striker:
            statuses = set()
            while not striker.strikes or striker.strikes[0].outcome != "recovered":
                statuses.add((await pool.run(call)).status)
            assert (await pool.run(call)).status == "success"
    finally:
        await pool.close()
    (strike,) = striker.strikes
    assert strike.confirmed and strike.outcome == "recovered"
    assert strike.figures["killed"] >= 1 and strike.figures["times refused"] >= 1
    assert "sandbox_failure" in statuses and statuses <= {"success", "sandbox_failure"}


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (ActorFault(kind="lose", at=0, actor="learner"), "no message is lost for good; use drop"),
        (ActorFault(kind="kill", at=0, actor="learner", process="jail"), "those that it may hit are environment-0"),
        (ActorFault(kind="squeeze", at=0, actor="learner"), "those that it may hit are environment-0"),
        (ActorFault(kind="freeze", at=0, actor="nobody"), "those that it may hit are learner, environment-0"),
        (ActorFault(kind="fill", at=0), "on a file system that others use"),
    ],
    ids=lambda value: value.kind if isinstance(value, ActorFault) else "",
)
def test_what_can_not_be_done_for_real_is_refused(fault: ActorFault, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=wrong):
        check_plan(ActorFaultPlan(faults=(fault,)), ["learner", "environment-0"], tmp_path)
