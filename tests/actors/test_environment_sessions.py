"""Sessions of trajectories over environments: real jails behind actors, and what is left when somebody is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.balancer import BalancerActor
from actors.director import DirectorActor
from actors.environment import EnvironmentActor
from actors.environment_pool import EnvironmentPool
from actors.messages import AwaitEnd, DescribeEnvironment, EndSessionsOf, EnvironmentStatus
from actors.supervision import Watched
from actors.system.actor import ActorRef, handles
from actors.tokenizer import PromptOptions
from env.host_state import sandbox_processes
from env.sessions import SessionOptions
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult
from policies.balancing import BalancerOptions
from tests.support.in_process_stage import InProcessStage


class Trajectory:
    """Runs the cells of one trajectory."""

    def __init__(self, pool: EnvironmentPool, name: str) -> None:
        self.pool, self.name = pool, name
        self._count = 0

    async def __call__(self, code: str, wall_seconds: float = 10.0) -> ToolResult:
        self._count += 1
        limits = Limits(wall_seconds=wall_seconds, memory_bytes=128 << 20)
        call = ToolCall(id=f"{self.name}/{self._count}", tool=JUPYTER_TOOL, code=code, limits=limits)
        return await self.pool.run(call, self.name)


class Service:
    """Two environments, and pools of whoever makes calls."""

    def __init__(self, stage: InProcessStage, names: list[ActorRef]) -> None:
        self.stage, self.refs = stage, names

    def pool(self) -> EnvironmentPool:
        return EnvironmentPool(self.stage.port, self.refs)

    async def live(self) -> list[int]:
        """Live sessions of each environment."""
        found: list[EnvironmentStatus] = [await self.stage.port.ask(ref, DescribeEnvironment()) for ref in self.refs]
        return [status.live_sessions for status in found]

    async def until_live(self, *wanted: int) -> None:
        while True:
            if sorted(await self.live()) == sorted(wanted):
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    before = {process.pid for process in sandbox_processes()}
    async with InProcessStage() as stage:
        refs = [
            await stage.host(
                f"environment-{n}",
                EnvironmentActor(
                    limits=Limits(wall_seconds=10), workers=2, cores=2, sessions=SessionOptions(most_live=4)
                ),
            )
            for n in range(2)
        ]
        yield Service(stage, refs)
    assert {process.pid for process in sandbox_processes()} == before, "nothing is left"


async def test_a_trajectorys_cells_go_where_its_session_is(service: Service):
    pool = service.pool()
    cells = [Trajectory(pool, name) for name in ("t/0", "t/1", "t/2", "t/3")]
    first = await asyncio.gather(*[cell(f"x = {n}") for n, cell in enumerate(cells)])
    assert not any(result.restarted for result in first)
    for _ in range(3):
        results = await asyncio.gather(*[cell("x += 10; x") for cell in cells])
        assert not any(result.restarted for result in results)
    assert [result.stdout for result in results] == ["30\n", "31\n", "32\n", "33\n"]
    assert await service.live() == [2, 2], "new sessions go where the fewest calls are"


async def test_calls_of_one_turn_run_in_the_order_of_the_turn(service: Service):
    cell = Trajectory(service.pool(), "t")
    results = await asyncio.gather(*[cell(f"x = [*globals().get('x', []), {n}]; x") for n in range(4)])
    assert results[-1].stdout == "[0, 1, 2, 3]\n"


async def test_the_end_of_a_trajectory_frees_its_session(service: Service):
    pool = service.pool()
    first, second = Trajectory(pool, "a"), Trajectory(pool, "b")
    await first("x = 1")
    await second("x = 2")
    pool.end_session("a")
    await service.until_live(0, 1)
    assert (await second("x")).stdout == "2\n"
    pool.end_session("b")
    pool.end_session("never was")
    await service.until_live(0, 0)
    assert "NameError" in (await first("x")).stderr, "it is another session now"


async def test_a_cell_that_nobody_waits_for_any_more_ends_with_its_session(service: Service):
    pool = service.pool()
    cell = Trajectory(pool, "a")
    await cell("x = 1")
    task = asyncio.create_task(cell("while True: pass"))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    pool.end_session("a")
    await service.until_live(0, 0)


async def test_a_session_whose_environment_forgot_it_is_rebuilt_by_its_cells(service: Service):
    pool = service.pool()
    cell = Trajectory(pool, "a")
    await cell("x = 1")
    assert (await cell("x = 2; 1 / 0")).status == "error"
    assert (await cell("x = 3; import os; os._exit(1)")).session_ended
    # as if the environment had died and come back: whoever owned sessions there is taken for gone
    for ref in service.refs:
        await service.stage.port.ask(ref, EndSessionsOf(owner="test-0"))
    await service.until_live(0, 0)
    result = await cell("x += 10; x")
    assert (result.stdout, result.restarted, result.replayed) == ("12\n", True, 2)


async def test_a_session_moves_to_another_environment_when_its_own_is_lost(service: Service):
    cell = Trajectory(service.pool(), "a")
    await cell("x = 1")
    await cell("x += 1")
    lost = (await service.live()).index(1)
    dying = service.stage.actors[service.refs[lost].name]
    service.stage.lose(service.refs[lost].name)
    try:
        result = await cell("x")
        assert (result.stdout, result.restarted, result.replayed) == ("2\n", True, 2)
        assert not (await cell("x")).restarted
    finally:
        await dying.stop()


class Caller(Watched):
    """Has cells run, as a rollout actor does; watched by the director."""

    def __init__(self, environments: list[ActorRef]) -> None:
        self._refs, self.death_seen = environments, asyncio.Event()

    async def start(self) -> None:
        self.cell = Trajectory(EnvironmentPool(self.port, self._refs), self.port.fresh_id())

    @handles(AwaitEnd)
    async def on_await_end(self, _: AwaitEnd) -> None:
        await self.death_seen.wait()


async def test_the_director_ends_the_sessions_of_a_rollout_actor_that_died_and_no_others(service: Service):
    stage = service.stage
    await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
    dies, lives = Caller(service.refs), Caller(service.refs)
    rollouts = [await stage.host("rollout-0", dies), await stage.host("rollout-1", lives)]
    away = [ActorRef(name) for name in ("learner", "archive")]  # nothing is asked of them here
    director = DirectorActor(
        model=None,
        prompt=PromptOptions(),
        run_seed=0,
        learner=away[0],
        balancer=ActorRef("balancer"),
        archive=away[1],
        generators=[],
        environments=service.refs,
        rollouts=rollouts,
        checkpoints="",
    )
    await stage.host("director", director)
    for each in (dies, lives):
        await each.cell("x = 1")
    await service.until_live(0, 2)  # where a pool of its own begins
    stage.lose("rollout-0")
    successor = Caller(service.refs)
    await stage.host("rollout-0", successor, incarnation=1)
    await successor.cell("x = 2")
    await service.until_live(0, 3)
    dies.death_seen.set()
    await service.until_live(0, 2)
    kept = [await each.cell("x") for each in (lives, successor)]
    assert [(result.stdout, result.restarted) for result in kept] == [("1\n", False), ("2\n", False)]


async def test_sessions_of_an_owner_are_ended_and_no_others(service: Service):
    cell = Trajectory(service.pool(), "a")
    await cell("x = 1")
    for ref in service.refs:
        await service.stage.port.ask(ref, EndSessionsOf(owner="rollout-7-1"))
    assert not (await cell("x")).restarted
