"""An understudy of `env.interpreters.Interpreters`: what comes of a call, and when, is read from a workload.

Invariants, as of the real one: each call gets exactly one result; no more than `workers` run at once, the others wait
in the order in which they came; a call never takes longer than its own time limit.
"""

from __future__ import annotations

import asyncio
from typing import cast

from actors.system.clock import Clock
from env.isolation import SandboxDescription
from env.tool_call import Status, ToolCall, ToolResult
from policies.scripted import Script


class SimulatedInterpreters:
    """`workers` interpreters that spend modelled time."""

    def __init__(self, workload: Script, workers: int, clock: Clock) -> None:
        self._workload, self._clock = workload, clock
        self._free = asyncio.Semaphore(workers)

    async def run(self, call: ToolCall) -> ToolResult:
        """See `Interpreters.run`."""
        scripted = self._workload.call(call.id)
        limit = call.limits.wall_seconds
        status = cast(Status, scripted.status)
        if status in ("success", "error") and scripted.run_seconds > limit:
            status = "timeout"
        seconds = min(scripted.run_seconds, limit)
        async with self._free:
            await self._clock.sleep(seconds)
        return ToolResult(
            id=call.id,
            status=status,
            exit_code={"success": 0, "error": 1}.get(status),
            wall_seconds=seconds,
            reason="" if status in ("success", "error") else f"simulated {status}",
        )

    async def describe(self) -> SandboxDescription:
        """Nothing runs here, so there is nothing to keep apart."""
        return SandboxDescription("simulated", "simulated", ())

    async def close(self) -> None:
        """There is nothing to close."""
