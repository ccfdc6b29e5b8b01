"""The same plans on environment actors: what one can't make good, another does."""

from __future__ import annotations

import asyncio

import pytest

from actors.environment import EnvironmentActor
from actors.environment_pool import EnvironmentPool
from actors.messages import DescribeEnvironment
from env.call_scheduler import RETRIES
from env.faults import Fault, FaultKind, FaultPlan
from env.tool_call import Limits, ToolCall
from tests.support.in_process_stage import InProcessStage

LIMITS = Limits(wall_seconds=60.0, memory_bytes=64 << 20)


@pytest.mark.parametrize("kind", ["crash", "garbled", "no_start"])
async def test_calls_that_one_environment_fails_each_time_are_run_elsewhere_and_none_is_lost(kind: FaultKind):
    broken = FaultPlan(faults=tuple(Fault(kind=kind, run=run) for run in range(RETRIES + 1)))
    async with InProcessStage() as stage:
        refs = [
            await stage.host(
                f"environment-{n}", EnvironmentActor(limits=LIMITS, workers=2, run_id=f"tests-faults-{n}", faults=plan)
            )
            for n, plan in enumerate((broken, None))
        ]
        pool = EnvironmentPool(stage.port, refs)
        calls = [ToolCall(id=f"c{n}", code=f"print('c{n}')", limits=LIMITS) for n in range(6)]
        results = await asyncio.gather(*(pool.run(call) for call in calls))
        assert [(each.id, each.status, each.stdout) for each in results] == [
            (call.id, "success", f"{call.id}\n") for call in calls
        ]
        failing, sound = [await stage.port.ask(ref, DescribeEnvironment()) for ref in refs]
        assert failing.calls_run == failing.sandbox_failures == pool.retried_elsewhere > 0
        assert failing.retried == RETRIES * failing.calls_run
        assert (sound.calls_run, sound.sandbox_failures) == (len(calls), 0)
