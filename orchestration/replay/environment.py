"""Replay to the environment: every stored call is executed again in real sandboxes, and compared with what it gave.

Invariants:
- each stored call is accounted for: compared, or left out with a reason (nothing ran then, or the sandbox failed);
- the calls of one trajectory run in their order, its cells in one session; trajectories run side by side, as many as
  keep the cores busy;
- what differs is executed once more, in fresh jails, before it is called a difference (see `nondeterminism`): a cell
  after the earlier ones of its session, which made the names that it uses.

Of calls that a limit or a signal ended only the ending is compared: how far a program had come by then is chance.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from env.call_scheduler import WORKERS_PER_CORE, CallScheduler
from env.image import Image
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.tool_call import Limits, ToolResult
from orchestration.recipe import Recipe, RecipeError
from orchestration.replay.nondeterminism import Cause, cause_of_difference, outputs
from policies.trajectory import CallRecord, Trajectory

Kind = Literal["status", "output", "timing"]
AnyCause = Cause | Literal["unstable status", "near its time limit", "a busy machine"]
"""`unstable status`: the second of two executions ended as the stored one did, the first did not. The others: see
`cause_of_timeout`."""

RAN_TO_THEIR_END = ("success", "error")
"""Statuses whose output is compared."""
NEVER_RAN = ("invalid_call", "sandbox_failure")
SLOWER, LEAST_SECONDS = 3.0, 0.25
"""A call's time differs if it is so many times longer or shorter, and by so many seconds."""
ANY = Limits(wall_seconds=3600.0, memory_bytes=1 << 42, processes=1 << 16, output_bytes=1 << 30, scratch_bytes=1 << 34)
"""The pool caps nothing: calls bring their own limits."""
STARVED = 0.75
"""A program that got less of a core than this, while its time ran out, was kept waiting by others."""
AT_ONCE = 8
"""Trajectories under way for each worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSetting:
    """The sandbox to try; None leaves a limit as it was stored."""

    image: Image = field(default_factory=Image)
    isolation: IsolationKind = "zygote"
    workers: int = 0
    """Calls at once; 0: as many as the cores take."""
    wall_seconds: float | None = None
    memory_bytes: int | None = None
    run_id: str = "replay-environment"

    def limits(self, stored: Limits) -> Limits:
        """What a call may use here."""
        changes = {"wall_seconds": self.wall_seconds, "memory_bytes": self.memory_bytes}
        return Limits(**stored.model_dump() | {name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that was answered differently."""

    trajectory: str
    record: CallRecord
    replayed: ToolResult
    kinds: tuple[Kind, ...]
    cause: AnyCause | None = None
    """Why it differs by chance; None if it does not."""

    @property
    def unexpected(self) -> bool:
        """Whether the sandbox answers otherwise than it did. Times are told of, and are no fault."""
        return self.cause is None and self.kinds != ("timing",)


@dataclass(slots=True)
class EnvironmentReplay:
    """What came of all calls."""

    compared: int = 0
    same: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> calls that could not be compared."""
    differences: list[Difference] = field(default_factory=list)
    stored_seconds: list[float] = field(default_factory=list)
    replayed_seconds: list[float] = field(default_factory=list)
    peak_memory_bytes: int = 0
    """The most that a stored call took."""
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(stored status, status here) -> calls."""

    @property
    def unexpected(self) -> list[Difference]:
        return [each for each in self.differences if each.unexpected]

    @property
    def by_chance(self) -> list[Difference]:
        """Calls that print something else each time, or end now so and now so (near a limit)."""
        return [each for each in self.differences if each.cause is not None]

    @property
    def in_time_only(self) -> list[Difference]:
        return [each for each in self.differences if each.kinds == ("timing",)]


def sandbox_setting(
    recipe: Recipe | None,
    *,
    image: Path | None,
    isolation: str | None,
    workers: int,
    memory_mib: float | None,
    wall_seconds: float | None,
) -> SandboxSetting:
    """The sandbox that a user asks for; what is None is as in the run.

    Raises `RecipeError` for what no sandbox can have.
    """
    chosen = isolation or (recipe.environments.isolation if recipe else "zygote")
    if chosen not in ("zygote", "jail-per-call"):
        raise RecipeError(f"--isolation {chosen!r} is unknown; choose zygote or jail-per-call")
    setting = SandboxSetting(
        image=Image() if image is None else Image.built_in(image.resolve()),
        isolation=chosen,
        workers=workers,
        wall_seconds=wall_seconds,
        memory_bytes=None if memory_mib is None else round(memory_mib * (1 << 20)),
    )
    try:
        setting.limits(Limits())
    except ValidationError as error:
        fault = error.errors()[0]
        raise RecipeError(f"limit {fault['loc'][0]} = {fault['input']}: {fault['msg']}") from error
    return setting


def difference_kinds(stored: ToolResult, replayed: ToolResult) -> tuple[Kind, ...]:
    """In what the two differ."""
    kinds: list[Kind] = []
    if _ending(stored) != _ending(replayed):
        kinds.append("status")
    if stored.status in RAN_TO_THEIR_END and replayed.status in RAN_TO_THEIR_END:
        if _written(stored) != _written(replayed):
            kinds.append("output")
    low, high = sorted((stored.wall_seconds, replayed.wall_seconds))
    if high > SLOWER * low and high - low > LEAST_SECONDS:
        kinds.append("timing")
    return tuple(kinds)


def _ending(result: ToolResult) -> tuple[str, int | None, int | None]:
    return result.status, result.exit_code, result.signal


def _written(result: ToolResult) -> tuple[str, str, bool, bool]:
    return *outputs(result), result.stdout_truncated, result.stderr_truncated


async def replay_environment(
    trajectories: Iterable[Trajectory],
    setting: SandboxSetting,
    on_call: Callable[[int], None] = lambda done: None,
) -> EnvironmentReplay:
    """Execute the calls of these trajectories again.

    Args:
        on_call: told how many calls are done.

    Raises `env.image.ImageIncomplete` if the image is not built.
    """
    replay = EnvironmentReplay()
    again: dict[str, dict[str, CallRecord]] = {}  # by trajectory, by call
    async for name, records, index, result in _executed(_runnable(trajectories, replay), setting, on_call):
        kinds = _take(replay, name, records[index], result)
        if "status" in kinds or "output" in kinds:
            again.setdefault(name, {}).update({each.call.id: each for each in _with_earlier_cells(records, index)})
    if again:
        work = [(name, list(calls.values())) for name, calls in again.items()]
        second = {
            records[index].call.id: result async for _, records, index, result in _executed(work, setting, _quiet)
        }
        replay.differences = [_explained(each, second.get(each.record.call.id), setting) for each in replay.differences]
    return replay


def _quiet(done: int) -> None:
    """For executions that nobody counts."""


def _with_earlier_cells(records: list[CallRecord], index: int) -> list[CallRecord]:
    """A call, and before it what its result hangs on: of a cell, the earlier ones of its session."""
    session = records[index].call.session
    before = [each for each in records[:index] if session and each.call.session == session]
    return [*before, records[index]]


def _runnable(trajectories: Iterable[Trajectory], replay: EnvironmentReplay) -> Iterator[tuple[str, list[CallRecord]]]:
    for trajectory in trajectories:
        runnable = [record for record in trajectory.calls if record.result.status not in NEVER_RAN]
        replay.left_out.update(record.result.status for record in trajectory.calls if record not in runnable)
        if runnable:
            yield trajectory.id, runnable


def _take(replay: EnvironmentReplay, trajectory: str, record: CallRecord, result: ToolResult) -> tuple[Kind, ...]:
    """Enter one result into the replay; returns in what it differs."""
    stored = record.result
    if result.status == "sandbox_failure":
        replay.left_out[f"the sandbox failed here: {result.reason}"] += 1
        return ()
    replay.compared += 1
    replay.statuses[stored.status, result.status] += 1
    replay.stored_seconds.append(stored.wall_seconds)
    replay.replayed_seconds.append(result.wall_seconds)
    replay.peak_memory_bytes = max(replay.peak_memory_bytes, stored.peak_memory_bytes)
    kinds = difference_kinds(stored, result)
    if kinds:
        replay.differences.append(Difference(trajectory, record, result, kinds))
    else:
        replay.same += 1
    return kinds


def _explained(difference: Difference, second: ToolResult | None, setting: SandboxSetting) -> Difference:
    """The difference with its cause, as far as a second execution tells."""
    if second is None or second.status == "sandbox_failure":
        return difference
    call, stored = difference.record.call, difference.record.result
    cause: AnyCause | None = None
    if "status" in difference.kinds:
        if second.status == stored.status:
            cause = "unstable status"
        elif setting.limits(call.limits).wall_seconds == call.limits.wall_seconds:
            cause = cause_of_timeout(stored, difference.replayed, call.limits.wall_seconds)
    elif "output" in difference.kinds:
        cause = cause_of_difference(call.code, stored, difference.replayed, second)
    return Difference(difference.trajectory, difference.record, difference.replayed, difference.kinds, cause)


def cause_of_timeout(
    stored: ToolResult, replayed: ToolResult, wall_seconds: float
) -> Literal["near its time limit", "a busy machine"] | None:
    """Why one of the two ran into the same time limit and the other did not, if the sandbox is not to blame.

    The clock on the wall decides, and a busy machine moves it: then the one that ran out of time had little of a core,
    or the other was nearly out of time as well.
    """
    timed_out, other = (stored, replayed) if stored.status == "timeout" else (replayed, stored)
    if timed_out.status != "timeout" or other.status not in RAN_TO_THEIR_END:
        return None
    if other.wall_seconds * SLOWER > wall_seconds:
        return "near its time limit"
    if other.cpu_seconds > LEAST_SECONDS / 10 and timed_out.cpu_seconds < STARVED * wall_seconds:
        return "a busy machine"
    return None


async def _executed(
    work: Iterable[tuple[str, list[CallRecord]]], setting: SandboxSetting, on_call: Callable[[int], None]
) -> AsyncIterator[tuple[str, list[CallRecord], int, ToolResult]]:
    """`(trajectory, its records, index of one, result)` of each call, as they are done; in fresh jails, which end with
    it."""
    cores = os.cpu_count() or 1
    workers = setting.workers or WORKERS_PER_CORE * cores
    interpreters = Interpreters(ANY, workers, setting.image, setting.run_id, isolation=setting.isolation)
    scheduler = CallScheduler(interpreters, cores=min(cores, workers), workers=workers)
    results: asyncio.Queue[tuple[str, list[CallRecord], int, ToolResult] | BaseException | None] = asyncio.Queue()
    pending = iter(work)

    async def play_trajectories() -> None:
        for name, records in pending:
            for index, record in enumerate(records):
                call = record.call.model_copy(update={"limits": setting.limits(record.call.limits)})
                results.put_nowait((name, records, index, await scheduler.run(call)))
            for session in {record.call.session for record in records}.intersection(interpreters.open_sessions()):
                await (await interpreters.sessions()).end(session)

    async def play_all() -> None:
        try:
            await asyncio.gather(*[play_trajectories() for _ in range(AT_ONCE * workers)])
        except BaseException as error:  # the archive may be damaged: whoever waits for results has to learn of it
            results.put_nowait(error)
            raise
        results.put_nowait(None)

    player, done = asyncio.ensure_future(play_all()), 0
    try:
        while (result := await results.get()) is not None:
            if isinstance(result, BaseException):
                await player
            else:
                done += 1
                on_call(done)
                yield result
    finally:
        player.cancel()
        await asyncio.gather(player, return_exceptions=True)
        await scheduler.close()
        await interpreters.close()
