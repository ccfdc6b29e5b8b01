"""Many calls at once on environment actors: is each answered, once and rightly, how fast, and in how much memory?

With `kill_every_s`, jails, zygotes and inits of the environments are killed at random meanwhile; that must change
nothing but the time it takes. Before the burst and after it the same mix runs as `bench tools` runs its calls,
straight on interpreters with nothing in front, so that both rates are those of the same minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import psutil
from pydantic import BaseModel

from actors.environment import EnvironmentActor
from actors.environment_pool import EnvironmentPool
from actors.messages import DescribeEnvironment, EnvironmentStatus
from actors.system.actor import ActorRef
from actors.system.ray_stage import RayStage
from actors.system.stage import Part
from env.call_scheduler import WORKERS_PER_CORE
from env.faults import SandboxKiller
from env.host_state import cgroups_of, sandbox_processes
from env.tool_call import ToolResult
from orchestration.bench.mixed_calls import LIMITS, Expected, mixed_calls
from orchestration.bench.tools import bench_mix

SAMPLE_S = 1.0
NEWS_S = 10.0
"""How often it is told how far a burst is."""
RESTARTS = 100


class Percentiles(BaseModel):
    p50: float
    p90: float
    p99: float
    max: float


class BurstFigures(BaseModel):
    """What came of a burst."""

    calls: int
    answered: int
    """Calls with an answer that came from their program (any status but `sandbox_failure`)."""
    lost: int
    """Calls without one."""
    duplicated: int
    """Answers beyond one for each call."""
    wrong: int
    """Answers that are not what the call's program gives."""
    calls_per_s: float
    bench_tools_mix_per_s: float
    """Of the same mix, as `bench tools` runs calls: its concurrency, interpreters with nothing in front."""
    ratio: float
    """`calls_per_s / bench_tools_mix_per_s`."""
    seconds: float
    latency_s: Percentiles
    """From the moment at which all calls were submitted to each call's answer."""
    memory_growth_bytes: int
    """Of all processes together (proportional set sizes): the most during the burst, less that before it."""
    kinds: dict[str, int]
    """Calls of each kind."""
    environments: int
    killed: dict[str, int]
    """Processes killed, by role."""
    retried_here: int
    """Runs again in the environment that had the call."""
    retried_elsewhere: int
    """Calls given to another environment."""
    left_behind: int
    """Processes and cgroups of the sandbox that were there still when all was closed."""
    weaknesses: tuple[str, ...]
    """What this host can't give its calls; none unless that was allowed."""

    @property
    def flawless(self) -> bool:
        return self.answered == self.calls and not (self.lost or self.duplicated or self.wrong or self.left_behind)


class Ledger:
    """The answers of a burst, as they come."""

    def __init__(self, expected: list[Expected]) -> None:
        self._expected = expected
        self._answers: Counter[str] = Counter()
        self.wrong = 0
        self.failed = 0
        """Answers that are the sandbox's own failure."""
        self.latencies: list[float] = []

    def enter(self, expected: Expected, result: ToolResult, seconds: float) -> None:
        """Note that `result` came for a call, `seconds` after all were submitted."""
        self.latencies.append(seconds)
        if result.status == "sandbox_failure":
            self.failed += 1
            return
        self._answers[result.id] += 1
        self.wrong += not expected.is_met_by(result)

    @property
    def answered(self) -> int:
        return sum(1 for each in self._expected if self._answers[each.call.id])

    @property
    def duplicated(self) -> int:
        return self._answers.total() - len(self._answers)


class _Memory:
    """The memory of this process and all below it, looked at now and then; the largest sum is kept."""

    def __init__(self) -> None:
        self.before = self.most = _memory_bytes()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.look()

    async def look(self) -> None:
        self.most = max(self.most, await asyncio.to_thread(_memory_bytes))


def _memory_bytes() -> int:
    """Sum of the proportional set sizes: what processes share is counted once."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it ended while we looked
            total += process.memory_full_info().pss
    return total


async def bench_burst(
    calls: int = 45_000,
    environments: int = 2,
    kill_every_s: float = 0.0,
    seed: int = 0,
    mix_seconds: float = 6.0,
    allow_weaker: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> BurstFigures:
    """Submit `calls` calls at once to `environments` actors on this machine, on a Ray of its own.

    Args:
        kill_every_s: kill a jail, a zygote or an init that often; 0 for never.
        mix_seconds: how long the mix is measured without actors, before and again after the burst.
        allow_weaker: also on a host that can't protect calls fully.
        say: hears of what is done, and now and then how many calls are answered.

    Raises `UnprotectedCall`, as `bench_mix` does.
    """
    direct = [await bench_mix(mix_seconds, seed, allow_weaker, say=say)]
    say("starting Ray")
    cores = max(1, (os.cpu_count() or 1) // environments)
    parts = [
        Part(
            name=f"environment-{index}",
            actor=EnvironmentActor,
            arguments={
                "limits": LIMITS,
                "cores": cores,
                "workers": WORKERS_PER_CORE * cores,
                "run_id": f"burst-{index}",
            },
            restarts=RESTARTS,
        )
        for index in range(environments)
    ]
    expected = list(mixed_calls(calls, seed))
    ledger = Ledger(expected)
    async with RayStage(seed=seed, name="burst", cpus=environments) as stage:
        refs = await stage.spawn(*parts)
        pids = {stage.pid(ref) for ref in refs}

        def pids_now() -> list[int]:
            now = [stage.pid(ref) for ref in refs]
            pids.update(now)
            return [pid for pid in now if pid]  # one that is being brought back has none

        pool = EnvironmentPool(stage.port, refs)
        warm = mixed_calls(2 * WORKERS_PER_CORE * cores * environments, seed, name="warm")
        await asyncio.gather(*(pool.run(each.call) for each in warm))
        before = await _statuses(stage, refs)
        memory = _Memory()
        killer = SandboxKiller(pids_now, random.Random(seed), kill_every_s)
        say(f"{calls:,} calls are submitted")
        async with (
            _beside(memory.watch()),
            _beside(killer.run() if kill_every_s else None),
            _beside(_tell(ledger, calls, say)),
        ):
            seconds = await _submit(pool, expected, ledger)
        await memory.look()
        after = await _statuses(stage, refs)
        retried_elsewhere = pool.retried_elsewhere
    direct.append(await bench_mix(mix_seconds, seed, allow_weaker, say=say))
    calls_per_s, mix_per_s = ledger.answered / seconds, sum(direct) / len(direct)
    left = len(sandbox_processes()) + sum(len(list(cgroups_of(pid))) for pid in pids)
    quantiles = np.quantile(ledger.latencies, (0.5, 0.9, 0.99, 1.0)).tolist()
    return BurstFigures(
        calls=calls,
        answered=ledger.answered,
        lost=calls - ledger.answered,
        duplicated=ledger.duplicated,
        wrong=ledger.wrong,
        calls_per_s=calls_per_s,
        bench_tools_mix_per_s=mix_per_s,
        ratio=calls_per_s / mix_per_s,
        seconds=seconds,
        latency_s=Percentiles(**dict(zip(("p50", "p90", "p99", "max"), quantiles, strict=True))),
        memory_growth_bytes=memory.most - memory.before,
        kinds=dict(Counter(each.kind for each in expected)),
        environments=environments,
        killed=dict(killer.killed),
        retried_here=sum(status.retried for status in after) - sum(status.retried for status in before),
        retried_elsewhere=retried_elsewhere,
        left_behind=left,
        weaknesses=tuple(sorted({text for status in after for text in status.weaknesses})),
    )


async def _submit(pool: EnvironmentPool, expected: list[Expected], ledger: Ledger) -> float:
    """Submit all calls, enter their answers; returns the seconds until the last of them."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def ask(each: Expected) -> None:
        result = await pool.run(each.call)
        ledger.enter(each, result, loop.time() - start)

    await asyncio.gather(*(ask(each) for each in expected))
    return loop.time() - start


async def _tell(ledger: Ledger, calls: int, say: Callable[[str], None]) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(NEWS_S)
        say(f"{len(ledger.latencies):,} of {calls:,} answered")


async def _statuses(stage: RayStage, refs: list[ActorRef]) -> list[EnvironmentStatus]:
    return [await stage.port.ask(ref, DescribeEnvironment(), 60.0) for ref in refs]


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Run a coroutine, if there is one, for as long as the block lasts."""
    task = None if work is None else asyncio.create_task(work)
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
