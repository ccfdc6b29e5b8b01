"""The scheduler of calls: order, bounds, retries and ends, with runs that a test lets go one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from env.call_scheduler import RETRIES, CallScheduler
from env.idle_cores import IdleCores
from env.tool_call import Status, ToolCall, ToolResult


class HeldRuns:
    """Each run waits until the test ends it."""

    def __init__(self) -> None:
        self.held: dict[str, asyncio.Future[ToolResult]] = {}
        self.begun: list[str] = []
        self.most_at_once = 0

    async def run(self, call: ToolCall) -> ToolResult:
        self.begun.append(call.id)
        self.held[call.id] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self.held))
        try:
            return await self.held[call.id]
        finally:
            del self.held[call.id]

    def end(self, call_id: str, status: Status = "success") -> None:
        self.held[call_id].set_result(ToolResult(id=call_id, status=status))


class SchedulerMachine(RuleBasedStateMachine):
    """Calls come, end, fail and are given up in any order; the model knows who must run and who must wait."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.runs = HeldRuns()
        self.scheduler = self._in_loop(lambda: CallScheduler(self.runs, cores=2, workers=2))
        self.answers: dict[str, asyncio.Future[ToolResult]] = {}
        self.open: list[str] = []
        """In order of submission: the first two run, the others wait."""
        self.failures: dict[str, int] = {}

    def _in_loop[T](self, act: Callable[[], T]) -> T:
        async def acted() -> T:
            done = act()
            for _ in range(20):
                await asyncio.sleep(0)
            return done

        return self.loop.run_until_complete(acted())

    @rule()
    def submit(self) -> None:
        name = f"c{len(self.answers)}"
        self.answers[name] = self._in_loop(lambda: self.scheduler.submit(ToolCall(id=name, code="1")))
        self.open.append(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), status=st.sampled_from(["success", "error", "timeout", "sandbox_failure"]))
    def end_one(self, data: st.DataObject, status: Status) -> None:
        name = data.draw(st.sampled_from(self.open[:2]))
        self._in_loop(lambda: self.runs.end(name, status))
        self.failures[name] = self.failures.get(name, 0) + (status == "sandbox_failure")
        if status != "sandbox_failure" or self.failures[name] > RETRIES:
            self.open.remove(name)
            assert self.answers[name].result().status == status

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self._in_loop(self.answers[name].cancel)
        self.open.remove(name)

    @invariant()
    def the_first_two_run_and_the_others_wait(self) -> None:
        assert sorted(self.runs.held) == sorted(self.open[:2])
        assert (self.scheduler.running, self.scheduler.waiting) == (len(self.open[:2]), len(self.open[2:]))
        assert [name for name, answer in self.answers.items() if not answer.done()] == self.open

    def teardown(self) -> None:
        async def close() -> None:
            closing = asyncio.ensure_future(self.scheduler.close())
            await asyncio.sleep(0)
            for name in list(self.runs.held):
                self.runs.end(name, "sandbox_failure")
            await closing

        self.loop.run_until_complete(close())
        assert all(self.answers[name].result().status == "sandbox_failure" for name in self.open)
        assert self.runs.most_at_once <= 2 and not self.runs.held
        self.loop.close()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


async def test_a_sandbox_that_raises_is_a_failure_and_the_next_call_runs():
    class Broken:
        async def run(self, call: ToolCall) -> ToolResult:
            raise ZeroDivisionError("planted")

    scheduler = CallScheduler(Broken(), cores=1, workers=1)
    for name in ("a", "b"):
        result = await scheduler.run(ToolCall(id=name, code="1"))
        assert (result.id, result.status, "planted" in result.reason) == (name, "sandbox_failure", True)


async def test_more_run_at_once_while_cores_idle_and_fewer_again_when_they_are_busy(monkeypatch: pytest.MonkeyPatch):
    idle = [2.0]
    looked = asyncio.Event()

    def look(_: IdleCores) -> float:
        looked.set()
        return idle[0]

    monkeypatch.setattr(IdleCores, "since_last_look", look)
    monkeypatch.setattr("env.call_scheduler.LOOK_S", 0.001)
    runs = HeldRuns()
    scheduler = CallScheduler(runs, cores=1, workers=6)
    answers = [scheduler.submit(ToolCall(id=f"c{n}", code="1")) for n in range(30)]
    while len(runs.held) < 6:
        looked.clear()
        await looked.wait()
    idle[0] = 0.0
    for _ in range(20):  # looks enough to come down to one at a time
        looked.clear()
        await looked.wait()
    most = []
    while runs.held:
        runs.end(next(iter(runs.held)))
        for _ in range(5):
            await asyncio.sleep(0)
        most.append(len(runs.held))
    assert [answer.result().id for answer in answers] == [f"c{n}" for n in range(30)]
    assert (runs.begun, runs.most_at_once) == ([f"c{n}" for n in range(30)], 6)
    assert most[:5] == [5, 4, 3, 2, 1] and set(most[5:-1]) == {1}
    await scheduler.close()


async def test_a_closed_scheduler_answers_at_once():
    scheduler = CallScheduler(HeldRuns(), cores=1, workers=1)
    await scheduler.close()
    assert (await scheduler.run(ToolCall(id="late", code="1"))).status == "sandbox_failure"


@pytest.mark.parametrize(("cores", "workers"), [(0, 2), (3, 2)])
def test_cores_that_no_worker_can_use_are_refused(cores: int, workers: int):
    with pytest.raises(ValueError, match=f"from 1 to the number of workers, 2, not {cores}"):
        CallScheduler(HeldRuns(), cores=cores, workers=workers)
