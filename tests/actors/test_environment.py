"""The environment actor runs each call once, and what the sandbox broke again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.environment import EnvironmentActor, HostUnsafe, RecentResults
from actors.messages import CancelCalls, DescribeEnvironment, RunCall, VerifyAnswer
from actors.system.actor import ActorRef
from actors.system.ray_stage import RayStage
from actors.system.stage import Part
from env.call_scheduler import RETRIES
from env.idle_cores import IdleCores
from env.image import Image
from env.interpreters import Interpreters
from env.preflight import Problem
from env.tool_call import Limits, ToolCall, ToolResult
from tests.support.in_process_stage import InProcessStage
from tests.support.waiting import until

ENVIRONMENT = ActorRef("environment")


@pytest.fixture
async def stage() -> AsyncIterator[InProcessStage]:
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(limits=Limits(), workers=2, run_id="tests-actor"))
        yield stage


def run(call_id: str, code: str) -> RunCall:
    return RunCall(call=ToolCall(id=call_id, code=code))


UNIQUE = "import os; print(os.urandom(8).hex())"
"""Never prints the same twice."""


async def test_a_call_is_answered_with_its_result(stage: InProcessStage):
    results = await asyncio.gather(*(stage.port.ask(ENVIRONMENT, run(f"c{n}", f"{n} * 2")) for n in range(5)))
    assert [(answer.result.id, answer.result.stdout) for answer in results] == [
        (f"c{n}", f"{2 * n}\n") for n in range(5)
    ]


async def test_a_call_asked_twice_runs_once(stage: InProcessStage):
    first, second = await asyncio.gather(*(stage.port.ask(ENVIRONMENT, run("a", UNIQUE)) for _ in range(2)))
    later = await stage.port.ask(ENVIRONMENT, run("a", UNIQUE))
    other = await stage.port.ask(ENVIRONMENT, run("b", UNIQUE))
    assert first == second == later
    assert other.result.stdout != first.result.stdout


async def test_who_gives_up_does_not_take_the_result_from_the_next_one(stage: InProcessStage):
    code = "import time; time.sleep(0.3); " + UNIQUE
    impatient = asyncio.create_task(stage.port.ask(ENVIRONMENT, run("a", code)))
    await asyncio.sleep(0.1)
    impatient.cancel()
    patient = await stage.port.ask(ENVIRONMENT, run("a", code))
    assert patient.result.status == "success" and patient.result.stdout


async def test_an_environment_that_looks_at_its_machine_does_not_start_where_code_is_not_safe(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[tuple] = []

    def unsafe(*asked_for) -> list[Problem]:
        asked.append(asked_for)
        return [Problem("There are no namespaces.", "allow them.")]

    monkeypatch.setattr("actors.environment.check_host", unsafe)
    async with InProcessStage() as stage:
        with pytest.raises(HostUnsafe, match=r"There are no namespaces\. Fix: allow them\."):
            await stage.host("a", EnvironmentActor(workers=1, isolation="jail-per-call", check_host=True))
        assert asked == [(Image(), "jail-per-call")]
        await stage.host("b", EnvironmentActor(workers=1, run_id="tests-unasked"))  # preflight has asked already
        assert len(asked) == 1


class _Flaky:
    """Stands before the real interpreters and makes the first runs of a call fail as a broken sandbox would."""

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, 0
        self.run = Interpreters.run

    async def __call__(self, pool: Interpreters, call: ToolCall) -> ToolResult:
        self.runs += 1
        if self.runs <= self.failures:
            return ToolResult(id=call.id, status="sandbox_failure", reason="broken")
        return await self.run(pool, call)


@pytest.mark.parametrize(("failures", "status"), [(RETRIES, "success"), (RETRIES + 1, "sandbox_failure")])
async def test_a_failure_of_the_sandbox_is_tried_again(
    stage: InProcessStage, monkeypatch: pytest.MonkeyPatch, failures: int, status: str
):
    flaky = _Flaky(failures)
    monkeypatch.setattr(Interpreters, "run", lambda pool, call: flaky(pool, call))
    answer = await stage.port.ask(ENVIRONMENT, run("a", "1"))
    assert (answer.result.status, flaky.runs) == (status, RETRIES + 1)
    again = await stage.port.ask(ENVIRONMENT, run("a", "1"))  # not remembered as failed
    assert again.result.status == "success"


async def test_a_tool_error_is_not_tried_again(stage: InProcessStage, monkeypatch: pytest.MonkeyPatch):
    flaky = _Flaky(0)
    monkeypatch.setattr(Interpreters, "run", lambda pool, call: flaky(pool, call))
    assert (await stage.port.ask(ENVIRONMENT, run("a", "1 / 0"))).result.status == "error"
    assert flaky.runs == 1


async def test_stopping_answers_what_runs():
    stage = InProcessStage()
    await stage.host("environment", EnvironmentActor(workers=1, run_id="tests-actor"))
    asked = asyncio.create_task(stage.port.ask(ENVIRONMENT, run("a", "while True: pass")))
    await asyncio.sleep(0.3)
    await stage.actors["environment"].stop()
    assert (await asked).result.status == "sandbox_failure"


async def test_an_answer_for_another_call_is_not_taken(stage: InProcessStage, monkeypatch: pytest.MonkeyPatch):
    real, confused = Interpreters.run, [True]

    async def run_confused(pool: Interpreters, call: ToolCall) -> ToolResult:
        result = await real(pool, call)
        return result.model_copy(update={"id": "another", "stdout": "7\n"}) if confused and confused.pop() else result

    monkeypatch.setattr(Interpreters, "run", run_confused)
    answer = await stage.port.ask(ENVIRONMENT, run("a", "6"))
    assert (answer.result.id, answer.result.stdout) == ("a", "6\n")
    assert (await stage.port.ask(ENVIRONMENT, DescribeEnvironment())).retried == 1


SLEEPS = "import time; time.sleep(60)"


async def until_running(stage: InProcessStage, running: int, waiting: int) -> None:
    while True:
        status = await stage.port.ask(ENVIRONMENT, DescribeEnvironment())
        if (status.running, status.waiting) == (running, waiting):
            return
        await asyncio.sleep(0.01)


async def test_cancelled_calls_are_answered_at_once_and_the_others_take_their_place():
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(limits=Limits(wall_seconds=120), workers=1))
        asked = {n: asyncio.create_task(stage.port.ask(ENVIRONMENT, run(n, SLEEPS))) for n in ("running", "waiting")}
        other = asyncio.create_task(stage.port.ask(ENVIRONMENT, run("other", "'other'")))
        await until_running(stage, running=1, waiting=2)
        stage.port.tell(ENVIRONMENT, CancelCalls(calls=("waiting", "running", "never heard of")))
        for task in asked.values():
            assert (await task).result.status == "sandbox_failure"
        assert (await other).result.stdout == "'other'\n"
        status = await stage.port.ask(ENVIRONMENT, DescribeEnvironment())
        assert (status.cancelled, status.calls_run, status.running, status.waiting) == (2, 1, 0, 0)
        again = await stage.port.ask(ENVIRONMENT, run("running", "'again'"))
        assert again.result.stdout == "'again'\n"


async def test_sleeping_calls_hold_nobody_back_while_cores_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(IdleCores, "since_last_look", lambda _: 1.0)
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(limits=Limits(wall_seconds=120), workers=4, cores=1))
        sleeping = [asyncio.create_task(stage.port.ask(ENVIRONMENT, run(f"s{n}", SLEEPS))) for n in range(3)]
        quick = await asyncio.gather(*(stage.port.ask(ENVIRONMENT, run(f"q{n}", str(n))) for n in range(4)))
        assert [answer.result.stdout for answer in quick] == [f"{n}\n" for n in range(4)]
        assert not any(task.done() for task in sleeping)
        stage.port.tell(ENVIRONMENT, CancelCalls(calls=("s0", "s1", "s2")))
        await asyncio.gather(*sleeping)


async def test_no_more_calls_than_cores_run_while_the_cores_are_busy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(IdleCores, "since_last_look", lambda _: 0.0)
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(workers=4, cores=1))
        calls = [asyncio.create_task(stage.port.ask(ENVIRONMENT, run(f"c{n}", "1"))) for n in range(4)]
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, (await stage.port.ask(ENVIRONMENT, DescribeEnvironment())).running)
            await asyncio.sleep(0.01)
        assert most == 1


async def test_waiting_calls_are_small():
    """What waits costs its message and a future, not a task, a process or a descriptor of its own."""
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(limits=Limits(wall_seconds=120), workers=1))
        waiting = [asyncio.create_task(stage.port.ask(ENVIRONMENT, run(f"c{n}", SLEEPS))) for n in range(2000)]
        await until_running(stage, running=1, waiting=1999)
        others = asyncio.all_tasks() - {*waiting, asyncio.current_task()}
        assert len(others) < 10 and len(os.listdir("/proc/self/fd")) < 200
        stage.port.tell(ENVIRONMENT, CancelCalls(calls=tuple(f"c{n}" for n in range(2000))))
        assert all(not answer.result.is_tool_error for answer in await asyncio.gather(*waiting))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60))
def test_remembered_results_are_the_latest_within_both_bounds(kept: list[tuple[int, int]]):
    recent = RecentResults(count=4, characters=100)
    order: dict[str, ToolResult] = {}
    for number, size in kept:
        result = ToolResult(id=str(number), status="success", stdout="x" * size)
        recent.keep(result)
        order.pop(result.id, None)
        order[result.id] = result
    remembered = [key for key in order if recent.get(key) is not None]
    assert remembered == list(order)[len(order) - len(remembered) :]
    assert all(recent.get(key) == order[key] for key in remembered)
    assert len(remembered) <= 4 and sum(len(order[key].stdout) for key in remembered) <= 100
    if len(order) <= 4 and sum(size for _, size in kept) <= 100:
        assert remembered == list(order)  # nothing is forgotten without need


async def test_the_status_counts_calls_and_names_the_sandbox() -> None:
    async with InProcessStage() as stage:
        environment = await stage.host("environment", EnvironmentActor(limits=Limits(wall_seconds=5), workers=1))
        for name in ("one", "two", "two"):
            await stage.port.ask(environment, RunCall(call=ToolCall(id=name, code="1 + 1")), 30)
        status = await stage.port.ask(environment, DescribeEnvironment(), 30)
        assert (status.sandbox, status.calls_run, status.sandbox_failures) == ("nsjail", 2, 0)


async def test_answers_are_compared_and_counted(stage: InProcessStage):
    golds = ["2\\sqrt{3}", "3\\sqrt{2}"]
    asked = [stage.port.ask(ENVIRONMENT, VerifyAnswer(extracted="\\sqrt{12}", gold=gold), 60) for gold in golds]
    assert [answer.verdict.reason for answer in await asyncio.gather(*asked)] == ["right", "wrong"]
    status = await stage.port.ask(ENVIRONMENT, DescribeEnvironment(), 30)
    assert (status.answers_compared, status.calls_run) == (2, 0)


@pytest.mark.slow
async def test_answers_are_compared_in_an_actor_of_its_own_process(ray_stage_factory: Callable[..., RayStage]):
    """On Ray the actor's loop is uvloop's and not on the main thread; the workers end with the actor."""
    async with ray_stage_factory() as ray_stage:
        (environment,) = await ray_stage.spawn(
            Part(name="environment", actor=EnvironmentActor, arguments={"workers": 1, "run_id": "tests-verification"})
        )
        asked = [
            ray_stage.port.ask(environment, VerifyAnswer(extracted=extracted, gold="2\\sqrt{3}"), 120)
            for extracted in ("\\sqrt{12}", "9^{9^{9^{9}}}", "\\sqrt{18}")
        ]
        reasons = [answer.verdict.reason for answer in await asyncio.gather(*asked)]
        assert reasons == ["right", "timed_out", "wrong"]
        assert len(verification_workers()) == 1
    await until(lambda: not verification_workers())


def verification_workers() -> list[int]:
    """On this machine, of whatever parent, but from this project."""
    found = psutil.process_iter(["cmdline", "environ"])
    root = str(Path(__file__).parents[2])
    return [
        process.pid
        for process in found
        if "actors.verification_worker" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("PYTHONPATH", "").startswith(root)
    ]
