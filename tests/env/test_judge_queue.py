"""The queue of a tool server answers each submission once, also when it is full, slow or ending."""

from __future__ import annotations

import asyncio

import pytest

from env.call_scheduler import CallScheduler
from env.interpreters import Interpreters
from env.judge_models import RunResult, Submission
from env.judge_queue import JudgeQueue
from env.tool_call import Limits, ToolCall, ToolResult


class Gate:
    """Runs nothing; each call waits until the gate opens, then succeeds."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.begun = self.ended_early = 0

    async def run(self, call: ToolCall) -> ToolResult:
        self.begun += 1
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        return ToolResult(id=call.id, status="success")


def submission(name: str) -> Submission:
    return Submission(sub_id=name, type="python", solution="1")


def queue_at(gate: Gate, most_open: int = 10) -> JudgeQueue:
    return JudgeQueue(gate, Limits(wall_seconds=0.01), workers=2, most_open=most_open)


async def asked(queue: JudgeQueue, count: int, patience_s: float = 60.0) -> list[asyncio.Task[RunResult]]:
    tasks = [asyncio.create_task(queue.answer(submission(f"s{n}"), patience_s)) for n in range(count)]
    await asyncio.sleep(0.01)
    return tasks


def unserved(queue: JudgeQueue, why: str) -> float | None:
    return queue.metrics.registry.get_sample_value("greenroom_tools_unserved_total", {"why": why})


async def test_a_full_queue_refuses_what_is_too_much_at_once_and_serves_the_rest():
    gate = Gate()
    queue = queue_at(gate, most_open=3)
    tasks = await asked(queue, 5)
    assert (queue.waiting, [task.done() for task in tasks]) == (1, [False] * 3 + [True] * 2)
    gate.opened.set()
    results = await asyncio.gather(*tasks)
    assert [(each.sub_id, each.reason) for each in results] == [
        (f"s{n}", "" if n < 3 else "queue_timeout") for n in range(5)
    ]
    assert "full" in (results[4].stderr or "") and unserved(queue, "queue_full") == 2
    assert (await queue.answer(submission("later"), 60.0)).run_success  # there is room again


async def test_who_waits_too_long_is_told_to_try_again_and_not_run_any_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("env.judge_queue._OVERHEAD_S", 0.0)
    gate = Gate()
    queue = queue_at(gate)
    (task,) = await asked(queue, 1, patience_s=0.05)
    result = await task
    assert (result.reason, result.status, result.run_success) == ("queue_timeout", "sandbox_failure", False)
    assert (gate.begun, gate.ended_early, queue.waiting) == (1, 1, 0)


async def test_who_goes_away_takes_the_program_along():
    gate = Gate()
    queue = queue_at(gate)
    tasks = await asked(queue, 3)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert (tasks[1].cancelled(), gate.ended_early, unserved(queue, "client_gone")) == (True, 1, 1)
    gate.opened.set()
    assert (await tasks[0]).run_success and (await tasks[2]).run_success


async def test_a_queue_that_closes_answers_all_with_try_again():
    gate = Gate()
    queue = queue_at(gate)
    tasks = await asked(queue, 5)
    queue.close()
    results = [*await asyncio.gather(*tasks), await queue.answer(submission("s5"), 60.0)]
    assert [(each.sub_id, each.reason) for each in results] == [(f"s{n}", "queue_timeout") for n in range(6)]
    assert (gate.ended_early, unserved(queue, "closing")) == (5, 6)


async def test_a_failure_of_the_sandbox_is_not_told_as_the_programs():
    class Broken:
        async def run(self, call: ToolCall) -> ToolResult:
            return ToolResult(id=call.id, status="sandbox_failure", reason="The sandbox broke.")

    queue = JudgeQueue(Broken(), Limits(), workers=1, most_open=1)
    result = await queue.answer(submission("a"), 1.0)
    assert (result.reason, result.stderr) == ("internal_error", "The sandbox broke.\n")


async def test_two_clients_may_use_the_same_ids():
    limits = Limits(wall_seconds=10.0)
    interpreters = Interpreters(limits, workers=2, run_id="tests-ids")
    scheduler = CallScheduler(interpreters, cores=2, workers=2)
    queue = JudgeQueue(scheduler, limits, workers=2, most_open=10)
    try:
        both = [Submission(sub_id="same", type="python", solution=f"print({n})") for n in range(2)]
        results = await asyncio.gather(*(queue.answer(each, 60.0) for each in both))
        assert [(each.sub_id, each.stdout) for each in results] == [("same", "0\n"), ("same", "1\n")]
    finally:
        await asyncio.gather(scheduler.close(), interpreters.close())
