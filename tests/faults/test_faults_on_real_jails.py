"""For each kind of fault: what the caller sees, and that nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from env.call_scheduler import RETRIES
from env.faults import KINDS, Fault, FaultKind, FaultPlan, FaultyEnvironment, Hit
from env.tool_call import Limits, ToolCall, ToolResult

type Make = Callable[..., FaultyEnvironment]

LIMITS = Limits(wall_seconds=60.0, memory_bytes=64 << 20)
"""More time than a program here needs on any machine."""
BRIEF = LIMITS.model_copy(update={"wall_seconds": 1.0})
"""For those that are to run out of time."""


def call(name: str, code: str | None = None, limits: Limits = LIMITS) -> ToolCall:
    return ToolCall(id=name, code=f"print('{name}')" if code is None else code, limits=limits)


def plan(kind: FaultKind, runs: int = 1, **settings: float) -> FaultPlan:
    return FaultPlan(faults=tuple(Fault(kind=kind, call="hit", run=run, **settings) for run in range(runs)))


async def hit_among_others(environment: FaultyEnvironment, limits: Limits = LIMITS) -> ToolResult:
    """The result of the call that is hit; its neighbours are not."""
    others = [call(f"other-{n}") for n in range(3)]
    result, *rest = await asyncio.gather(*(environment.run(each) for each in (call("hit", limits=limits), *others)))
    assert [(each.id, each.status, each.stdout) for each in rest] == [
        (each.id, "success", f"{each.id}\n") for each in others
    ]
    assert (await environment.run(call("later"))).stdout == "later\n"
    return result


@pytest.mark.parametrize("kind", ["crash", "garbled", "no_start"])
async def test_the_sandboxs_own_fault_is_made_good_by_another_run(faulty_environment: Make, kind: FaultKind):
    environment = faulty_environment(plan(kind), LIMITS)
    result = await hit_among_others(environment)
    assert (result.id, result.status, result.stdout) == ("hit", "success", "hit\n")
    assert (environment.hits, environment.retried) == ([Hit("hit", 0, kind)], 1)


@pytest.mark.parametrize("kind", ["crash", "garbled", "no_start"])
async def test_a_fault_that_comes_each_time_is_a_sandbox_failure_and_no_tool_error(
    faulty_environment: Make, kind: FaultKind
):
    environment = faulty_environment(plan(kind, runs=RETRIES + 1), LIMITS)
    result = await hit_among_others(environment)
    assert (result.id, result.status, result.is_tool_error) == ("hit", "sandbox_failure", False)
    assert result.reason and result.stdout == ""
    assert environment.hits == [Hit("hit", run, kind) for run in range(RETRIES + 1)]


async def test_a_jail_that_hangs_is_ended_at_the_calls_deadline(faulty_environment: Make):
    environment = faulty_environment(plan("hang"), LIMITS)
    result = await hit_among_others(environment, BRIEF)
    assert (result.id, result.status, environment.retried) == ("hit", "timeout", 0)
    assert result.wall_seconds >= BRIEF.wall_seconds


async def test_running_out_of_memory_is_the_calls_own_error(faulty_environment: Make):
    environment = faulty_environment(plan("out_of_memory"), LIMITS)
    result = await hit_among_others(environment)
    assert (result.id, result.status, environment.retried) == ("hit", "memory", 0)


async def test_a_late_answer_is_the_right_one_and_others_do_not_wait_for_it(faulty_environment: Make):
    faults = (Fault(kind="late", call="hit", late_s=0.2), Fault(kind="late", call="very late", late_s=3600.0))
    environment = faulty_environment(FaultPlan(faults=faults), LIMITS)
    very_late = asyncio.create_task(environment.run(call("very late")))
    assert (await environment.run(call("hit"))).stdout == "hit\n"
    assert (await environment.run(call("other"))).stdout == "other\n"
    assert not very_late.done()
    very_late.cancel()


async def test_who_does_not_wait_for_a_late_answer_frees_its_place(faulty_environment: Make):
    environment = faulty_environment(plan("late", late_s=3600.0), LIMITS, cores=1, workers=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await environment.run(call("hit"))
    assert (await environment.run(call("other"))).stdout == "other\n"


UNIQUE = "import os; print(os.urandom(8).hex())"


async def test_a_call_that_is_run_twice_is_answered_once(faulty_environment: Make):
    environment = faulty_environment(plan("doubled"), LIMITS)
    result = await environment.run(call("hit", UNIQUE))
    assert (result.id, result.status, len(result.stdout)) == ("hit", "success", 17)
    assert environment.hits == [Hit("hit", 0, "doubled")]


async def test_a_mixed_plan_loses_nothing(faulty_environment: Make):
    """Every call is answered once, and those whose program was left alone with what it printed."""
    names = [f"call-{n}" for n in range(24)]
    drawn = FaultPlan.drawn(seed=19, calls=names, share=0.5, late_s=0.1)
    assert {fault.kind for fault in drawn.faults} == set(KINDS)  # else choose another seed
    environment = faulty_environment(drawn, LIMITS)
    hanging = {fault.call for fault in drawn.faults if fault.kind == "hang"}
    calls = [call(name, limits=BRIEF if name in hanging else LIMITS) for name in names]
    results = await asyncio.gather(*map(environment.run, calls))
    assert [result.id for result in results] == names
    spoilt: dict[str, str] = {
        fault.call: {"hang": "timeout", "out_of_memory": "memory"}.get(fault.kind, "success") for fault in drawn.faults
    }
    assert [result.status for result in results] == [spoilt.get(name, "success") for name in names]
    assert all(each.stdout == f"{each.id}\n" for each in results if each.status == "success")
    assert {hit.call for hit in environment.hits} == spoilt.keys()
