"""A pool answers each call once, whatever its environments do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.environment_pool import CALL_GRACE_S, FAILURES, PAUSES_S, EnvironmentPool
from actors.messages import CallFinished, CancelCalls, RunCall
from actors.system.actor import Actor, ActorLost, handles
from actors.system.clock import Timer
from env.tool_call import Limits, ToolCall, ToolResult
from tests.support.in_process_stage import InProcessStage

CALL = ToolCall(id="a", code="1")


class InstantClock:
    """Sleeps are noted and take no time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_ns(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        self.slept.append(delay)
        return asyncio.get_running_loop().call_soon(callback)


class ScriptedEnvironment(Actor):
    """Does with each call what the script says; the last entry for ever. `hang` answers never, `slow` after three
    looks at what it has done."""

    def __init__(self, *script: str, progresses: bool = True) -> None:
        self.script, self.progresses = list(script), progresses
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.looks = 0
        self.may_end = asyncio.Event()
        self.was_asked = asyncio.Event()

    @handles(RunCall)
    async def on_run(self, request: RunCall) -> CallFinished:
        self.asked.append(request.call.id)
        self.was_asked.set()
        await asyncio.sleep(0)
        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if act == "lost":
            raise ActorLost("planted death")
        if act == "broken":
            raise ValueError("planted bug")
        if act == "hang":
            await asyncio.Event().wait()
        if act == "slow":
            await self.may_end.wait()
        status = "sandbox_failure" if act == "fail" else "success"
        return CallFinished(result=ToolResult(id=request.call.id, status=status, stdout=act))

    @handles(CancelCalls)
    async def on_cancel(self, message: CancelCalls) -> None:
        self.cancelled += message.calls

    async def work_done(self) -> int:
        self.looks += 1
        if self.looks == 3:
            self.may_end.set()
        return self.looks if self.progresses else 0


@pytest.fixture
def clock() -> InstantClock:
    return InstantClock()


async def pool_of(stage: InProcessStage, *environments: Actor, clock: InstantClock | None = None) -> EnvironmentPool:
    stage.port.clock = clock or InstantClock()
    refs = [await stage.host(f"environment-{n}", each) for n, each in enumerate(environments)]
    return EnvironmentPool(stage.port, refs)


@pytest.mark.parametrize("trouble", ["fail", "lost", "broken"])
async def test_what_one_environment_fails_is_run_by_another_without_waiting(trouble: str, clock: InstantClock):
    async with InProcessStage() as stage:
        bad, good = ScriptedEnvironment(trouble), ScriptedEnvironment("good")
        pool = await pool_of(stage, bad, good, clock=clock)
        results = [await pool.run(ToolCall(id=f"c{n}", code="1")) for n in range(4)]
        assert [(result.id, result.stdout) for result in results] == [(f"c{n}", "good") for n in range(4)]
        assert pool.retried_elsewhere == len(bad.asked) > 0
        assert clock.slept == []


async def test_the_only_environment_is_waited_for_while_it_comes_back(clock: InstantClock):
    async with InProcessStage() as stage:
        pool = await pool_of(stage, ScriptedEnvironment("lost", "lost", "lost", "good"), clock=clock)
        assert (await pool.run(CALL)).stdout == "good"
        assert clock.slept == list(PAUSES_S[:3])


async def test_a_call_that_kills_whatever_runs_it_is_given_up():
    async with InProcessStage() as stage:
        environments = [ScriptedEnvironment("lost") for _ in range(8)]
        pool = await pool_of(stage, *environments)
        result = await pool.run(CALL)
        assert (result.status, "planted death" in result.reason) == ("sandbox_failure", True)
        assert sum(len(each.asked) for each in environments) == len(PAUSES_S) + 1


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_a_call_that_every_sandbox_fails_is_given_up_at_once(clock: InstantClock, count: int):
    async with InProcessStage() as stage:
        environments = [ScriptedEnvironment("fail") for _ in range(count)]
        pool = await pool_of(stage, *environments, clock=clock)
        assert (await pool.run(CALL)).status == "sandbox_failure"
        assert sum(len(each.asked) for each in environments) == FAILURES
        assert clock.slept == []


async def test_who_gives_up_cancels_the_call():
    async with InProcessStage() as stage:
        slow = ScriptedEnvironment("hang")
        pool = await pool_of(stage, slow)
        task = asyncio.create_task(pool.run(CALL))
        await slow.was_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*stage.tasks)
        assert slow.cancelled == ["a"]


SHORT = ToolCall(id="a", code="1", limits=Limits(wall_seconds=0.01))


async def test_a_deadline_at_an_environment_that_gets_on_is_only_a_reason_to_wait_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("actors.environment_pool.CALL_GRACE_S", 0.0)
    async with InProcessStage() as stage:
        busy = ScriptedEnvironment("slow")
        pool = await pool_of(stage, busy)
        assert (await pool.run(SHORT)).stdout == "slow"
        assert (busy.asked, busy.cancelled, busy.looks) == (["a"], [], 3)


async def test_an_environment_that_is_stuck_loses_its_calls_to_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("actors.environment_pool.CALL_GRACE_S", 0.0)
    async with InProcessStage() as stage:
        stuck, good = ScriptedEnvironment("hang", progresses=False), ScriptedEnvironment("good")
        pool = await pool_of(stage, stuck, good)
        results = await asyncio.gather(*(pool.run(SHORT.model_copy(update={"id": str(n)})) for n in range(6)))
        assert [(result.id, result.stdout) for result in results] == [(str(n), "good") for n in range(6)]
        assert sorted(stuck.cancelled) == sorted(set(stuck.asked)) and len(stuck.cancelled) == 3
        assert stuck.looks >= 2


@given(st.lists(st.lists(st.sampled_from(["good", "fail", "lost", "broken"]), min_size=1), min_size=1, max_size=4))
def test_each_call_gets_one_answer_whatever_happens(scripts: list[list[str]]):
    async def run() -> None:
        async with InProcessStage() as stage:
            environments = [ScriptedEnvironment(*script) for script in scripts]
            pool = await pool_of(stage, *environments)
            results = await asyncio.gather(*(pool.run(ToolCall(id=str(n), code="1")) for n in range(5)))
            assert [result.id for result in results] == [str(n) for n in range(5)]
            assert all(result.status in ("success", "sandbox_failure") for result in results)
            asked = [name for each in environments for name in each.asked]
            assert all(asked.count(str(n)) <= FAILURES + len(PAUSES_S) for n in range(5))
            assert pool.retried_elsewhere == len(asked) - 5

    asyncio.run(run())


def test_calls_are_waited_for_longer_than_their_own_limit():
    assert CALL_GRACE_S > 60
