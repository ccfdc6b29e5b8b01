"""A run's folder whose calls were really executed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from actors.storage.writer import ArchiveWriter
from env.image import Image
from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult
from orchestration.run_folder import write_versions
from policies.trajectory import CallRecord, Trajectory
from tests.orchestration.archive.dialogues import PROMPT, text_span, text_trajectory

LIMITS = Limits(wall_seconds=60.0, memory_bytes=256 << 20)


def execute(programs: Sequence[str], limits: Limits = LIMITS) -> list[ToolResult]:
    """What the sandbox says of each program."""

    async def run() -> list[ToolResult]:
        interpreters = Interpreters(limits, 2, Image(), "test-replay")
        try:
            calls = [ToolCall(id=f"rl/0/0/{n}/0/0", code=code, limits=limits) for n, code in enumerate(programs)]
            return list(await asyncio.gather(*[interpreters.run(call) for call in calls]))
        finally:
            await interpreters.close()

    return asyncio.run(run())


def cells_rollout(sample: int, cells: Sequence[str], limits: Limits = LIMITS) -> Trajectory:
    """A rollout that ran these cells, one a turn, in its session."""
    name = f"rl/0/0/{sample}"

    async def run() -> list[CallRecord]:
        interpreters = Interpreters(limits, 1, Image(), "test-replay")
        records = []
        try:
            for turn, code in enumerate(cells):
                call = ToolCall(id=f"{name}/{turn}/0", tool=JUPYTER_TOOL, code=code, limits=limits, session=name)
                records.append(CallRecord(turn=turn, call=call, result=await interpreters.run(call)))
        finally:
            await interpreters.close()
        return records

    records = asyncio.run(run())
    turns = [
        span
        for record in records
        for span in (text_span("model", record.call.code), text_span("tool", record.result.stdout))
    ]
    return text_trajectory(sample, PROMPT, *turns, text_span("model", "42"), calls=tuple(records), id=name)


def rollout(sample: int, code: str, result: ToolResult) -> Trajectory:
    """A rollout of one call."""
    name = f"rl/0/0/{sample}"
    call = ToolCall(id=f"{name}/0/0", code=code, limits=LIMITS)
    record = CallRecord(turn=0, call=call, result=result.model_copy(update={"id": call.id}))
    spans = PROMPT, text_span("model", code), text_span("tool", result.stdout), text_span("model", "42")
    return text_trajectory(sample, *spans, calls=(record,), id=name)


def store(run: Path, trajectories: Sequence[Trajectory]) -> Path:
    """A run's folder with these trajectories, and what its image holds."""
    writer = ArchiveWriter(run / "archive")
    for trajectory in trajectories:
        writer.append(trajectory)
    writer.close()
    write_versions(run)
    return run
