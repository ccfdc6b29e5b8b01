"""How many cores of environments does a training step's tool traffic need?

Service times are those that `greenroom bench tools --json` measured on a machine like the ones to be bought. Queueing
is not a formula but the environments' own scheduler (`env.call_scheduler`), with the dispatch of the environment pool
before it, on a virtual clock: calls come in, wait, hold a core for their time, and are answered.

Invariants: the same question has the same answer; each call is answered exactly once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from actors.system.virtual_loop import run_virtual
from env.call_scheduler import CallScheduler
from env.tool_call import ToolCall, ToolResult
from orchestration.recipe import RecipeError
from orchestration.simulation import quantile
from policies.dispatch import LeastOutstanding

BURST = 45_000
"""Calls of one training step of rStar2-Agent (arXiv 2508.20722)."""
GOAL_S = 0.3
"""Mean seconds from a call to its result, in the same place."""
STEADY_CALLS = 20_000
"""Calls of a steady load that are simulated; the first tenth of them, which find empty queues, are not counted."""
PRECISION = 0.01
"""The numbers of cores that are found are at most this share above the least."""


class Latency(BaseModel):
    """What calls waited and ran."""

    mean_s: float
    p99_s: float


class Need(BaseModel):
    """The cores that reach the goal, all environments together, and what they give."""

    cores: int
    calls: int
    calls_per_s: float | None
    """None: all at once."""
    latency: Latency


class Sizing(BaseModel):
    """What `greenroom simulate --tools` adds."""

    goal_s: float
    environments: int
    core_seconds: dict[str, float]
    """Of a call, by kind; calls are of each kind equally often."""
    burst: Need
    steady: Need


def service_times(path: Path) -> dict[str, float]:
    """Seconds that a call holds a core, by kind, from the output of `greenroom bench tools --json`.

    Raises `RecipeError` if the file is none.
    """
    try:
        found = json.loads(path.read_text())
        times = {name: float(kind["core_seconds"]) for name, kind in found["kinds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"--tools {path}: {type(error).__name__}: {error}; give what `greenroom bench tools --json` has printed"
        ) from error
    if not times or min(times.values()) <= 0:
        raise RecipeError(f"--tools {path}: a call takes no time there; measure again")
    return times


def size(core_seconds: dict[str, float], *, environments: int, calls_per_s: float, goal_s: float = GOAL_S) -> Sizing:
    """The cores that a burst of `BURST` calls and a steady load need for a mean of `goal_s` seconds per call.

    Args:
        core_seconds: of a call, by kind (`service_times`).
        environments: that share the calls, with as many cores each.
        calls_per_s: of the steady load (Poisson arrivals).

    Raises `RecipeError` if no number of cores is enough.
    """
    kinds = list(core_seconds.values())
    mean = sum(kinds) / len(kinds)
    if mean >= goal_s:
        raise RecipeError(
            f"a call holds a core for {mean:.3f} s on average: no number of cores brings it below {goal_s:g} s"
        )
    rng = random.Random(0)
    burst = [(0.0, rng.choice(kinds)) for _ in range(BURST)]
    at, steady = 0.0, []
    for _ in range(STEADY_CALLS):
        at += rng.expovariate(calls_per_s)
        steady.append((at, rng.choice(kinds)))
    return Sizing(
        goal_s=goal_s,
        environments=environments,
        core_seconds=core_seconds,
        burst=_need(burst, environments, goal_s, least=BURST * mean / 2 / (goal_s - mean / 2), rate=None),
        steady=_need(steady, environments, goal_s, least=calls_per_s * mean, rate=calls_per_s),
    )


class Call(NamedTuple):
    """A call of a traffic."""

    arrival: float
    """Seconds after the first one; they never go back."""
    seconds: float
    """For which it holds a core."""


def latencies(calls: Sequence[tuple[float, float]], environments: int, cores: int) -> list[float]:
    """`[call]` seconds from arrival to result, with `cores` cores at each environment."""
    return run_virtual(_play([Call(*call) for call in calls], environments, cores))


async def _play(calls: Sequence[Call], environments: int, cores: int) -> list[float]:
    loop = asyncio.get_running_loop()
    schedulers = {
        f"environment-{index}": CallScheduler(_Sleeps(calls), cores=cores, workers=cores)
        for index in range(environments)
    }
    dispatch = LeastOutstanding(list(schedulers))
    took = [0.0] * len(calls)
    began = loop.time()

    def finished(index: int, where: str) -> Callable[[asyncio.Future[ToolResult]], None]:
        def note(_: asyncio.Future[ToolResult]) -> None:
            dispatch.finished(where)
            took[index] = loop.time() - began - calls[index].arrival

        return note

    answers = []
    for index, call in enumerate(calls):
        if call.arrival > loop.time() - began:
            await asyncio.sleep(call.arrival - (loop.time() - began))
        where = dispatch.choose(frozenset())
        answer = schedulers[where].submit(ToolCall(id=str(index), code=""))
        answer.add_done_callback(finished(index, where))
        answers.append(answer)
    await asyncio.gather(*answers)
    await asyncio.gather(*[scheduler.close() for scheduler in schedulers.values()])
    return took


class _Sleeps:
    """Holds a core (one of the scheduler's places) for as long as the call's time."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    async def run(self, call: ToolCall) -> ToolResult:
        """See `env.call_scheduler.Runs`."""
        await asyncio.sleep(self._calls[int(call.id)].seconds)
        return ToolResult(id=call.id, status="success")


def _need(
    calls: Sequence[tuple[float, float]], environments: int, goal_s: float, *, least: float, rate: float | None
) -> Need:
    """The cores that reach the goal; `least` is a number that is about right or too small."""

    def latency(each: int) -> Latency:
        took = latencies(calls, environments, each)
        counted = sorted(took if rate is None else took[len(took) // 10 :])
        return Latency(mean_s=sum(counted) / len(counted), p99_s=quantile(counted, 0.99))

    enough, few = max(1, round(least / environments)), 0
    found = latency(enough)
    while found.mean_s > goal_s:
        few, enough = enough, enough + max(1, enough // 20)
        found = latency(enough)
    while not few and enough > 1:  # the first guess was enough: perhaps fewer are
        fewer = enough - max(1, enough // 20)
        tried = latency(fewer)
        if tried.mean_s > goal_s:
            few = fewer
        else:
            enough, found = fewer, tried
    while enough - few > max(1, round(PRECISION * enough)):
        middle = (few + enough) // 2
        tried = latency(middle)
        if tried.mean_s <= goal_s:
            enough, found = middle, tried
        else:
            few = middle
    return Need(cores=enough * environments, calls=len(calls), calls_per_s=rate, latency=found)
