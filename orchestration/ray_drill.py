"""`greenroom drill` on Ray: a training run under a fault plan, and whether its books balance afterwards.

Invariants:
- whatever the faults do to the run, the report is written: `drill.json` in the run's folder;
- books are looked at while the actors still live, when nothing new is asked of them, and again when they are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from actors.messages import DescribeBalancer, DescribeEnvironment, DescribeGenerator, DescribeRollouts
from actors.storage.check import check_archive
from actors.storage.checkpoints import newest_checkpoint
from actors.storage.frames import ArchiveError
from actors.supervision import patiently
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.actor_faults import ActorFaultPlan
from actors.system.message import Message, Request
from actors.system.ray_stage import RayStage
from env.host_state import cgroups_of, sandbox_processes
from orchestration.books import books_fault
from orchestration.cast import Cast
from orchestration.recipe import Recipe
from orchestration.resume import CHECKPOINTS
from orchestration.run_folder import write_json
from orchestration.strikes import Strike, Striker

LOOK_S = 1.0
LOOK_DEADLINE_S = 5.0
SETTLE_S = 120.0
"""For what was hit last to recover, when the run has come to its end."""
BOOKS_S = 60.0
"""For leases that are still on their way home."""
REPORT_FILE = "drill.json"


@dataclass(slots=True)
class DrillReport:
    """What a drill came to."""

    plan: dict[str, Any]
    seed: int
    finished: bool = False
    reason: str = ""
    """Why the run ended early; empty if it did not."""
    ended_as_it_must: bool = False
    """Whether it ended early because the plan filled its disk, said so, and can be resumed."""
    wall_seconds: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    hit: dict[str, int] = field(default_factory=dict)
    """`KIND PROCESS of ACTOR` (`KIND ACTOR` for its own process) -> how many times, each confirmed."""
    retried: dict[str, int] = field(default_factory=dict)
    """What was done again in all of the run."""
    deaths: dict[str, int] = field(default_factory=dict)
    rewinds: list[dict[str, str]] = field(default_factory=list)
    """Where the run went back to a checkpoint, and why."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """As in summary.json: accuracies."""
    rollouts_stored: int = 0
    rollouts_stored_twice: int = 0
    """Played again, as whole attempts, since whoever played them died or weights were restored."""
    faults: list[str] = field(default_factory=list)
    """Where the books do not balance."""

    @property
    def passed(self) -> bool:
        return (self.finished or self.ended_as_it_must) and not self.faults


class RayDrill:
    """Carries a plan out beside a run, and keeps its report.

    Example:
        drill = RayDrill(recipe, folder, plan, seed=0)
        await run_training(recipe, folder, beside=drill.beside)
        report = drill.report(summary)
    """

    def __init__(self, recipe: Recipe, folder: Path, plan: ActorFaultPlan, seed: int) -> None:
        self._recipe, self._folder, self._seed = recipe, folder, seed
        self._plan = plan
        self._tally = Tally()
        self._report = DrillReport(plan.model_dump(mode="json"), seed)
        self._strikes: list[Strike] = []
        self._never: dict[str, None] = {}
        self._environments: set[int] = set()
        """Pids that were ever seen of the environments."""

    @contextlib.asynccontextmanager
    async def beside(self, stage: RayStage, cast: Cast) -> AsyncIterator[None]:
        """For `Training`: faults happen within, and the books are looked at when the run has come to its end."""
        names = [part.name for part in cast.parts()]
        striker = Striker(stage, self._plan, names, self._seed, folder=self._folder, counters=self._tally.counts)
        self._strikes, self._never = striker.strikes, striker.never
        tasks = [asyncio.create_task(striker.run()), asyncio.create_task(self._watch(stage, cast))]
        try:
            yield
            tasks[0].cancel()
            await striker.settle(SETTLE_S)
            await self._look_at_books(stage.port, cast)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await striker.settle(0.0)
            broken = [each for each in outcomes if isinstance(each, Exception)]
            self._report.faults += [f"the drill itself broke: {each!r}" for each in broken]

    async def _watch(self, stage: RayStage, cast: Cast) -> None:
        """Keep count of what is done again."""
        while True:
            for part in (*cast.rollouts, *cast.environments):
                with contextlib.suppress(ActorError, LookupError):
                    if stage.runs(ActorRef(part.name)):
                        await self._tally.look(stage, part.name, is_environment=part in cast.environments)
            for part in cast.environments:
                self._environments.add(stage.pid(ActorRef(part.name)))
            await asyncio.sleep(LOOK_S)

    async def _look_at_books(self, port: Port, cast: Cast) -> None:
        faults: list[str] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + BOOKS_S
        while faults := await self._open_entries(port, cast):
            if loop.time() > until:
                break
            await asyncio.sleep(LOOK_S)
        self._report.faults += faults

    async def _open_entries(self, port: Port, cast: Cast) -> list[str]:
        """What somebody still holds, or waits for, though no work is left."""
        entries: list[tuple[str, str, int]] = []
        balancer = await self._described(port, cast.balancer.name, DescribeBalancer())
        if balancer is not None:
            leases = sum(load.sessions for load in balancer.loads)
            entries += [("balancer", "leases", leases), ("balancer", "wishes", balancer.waiting)]
            entries.append(("balancer", "generators missing", len(cast.generators) - len(balancer.loads)))
        for part in cast.rollouts:
            if (status := await self._described(port, part.name, DescribeRollouts())) is not None:
                entries += [(part.name, "rollouts", status.playing), (part.name, "leases", status.leases)]
        for part in cast.generators:
            if (status := await self._described(port, part.name, DescribeGenerator())) is not None:
                entries.append((part.name, "turns", status.running))
        for part in cast.environments:
            if (status := await self._described(port, part.name, DescribeEnvironment())) is not None:
                entries += [(part.name, "calls", status.waiting + status.running)]
                entries += [(part.name, "sessions", status.live_sessions)]
        return [f"{name} has {count} {what} open at the end" for name, what, count in entries if count]

    async def _described[R: Message](self, port: Port, name: str, request: Request[R]) -> R | None:
        try:
            return await patiently(port, ActorRef(name), request, LOOK_DEADLINE_S, unless_at_work=False)
        except ActorError as error:
            self._report.faults.append(f"{name} does not answer at the end: {error}")
            return None

    def report(self, summary: dict[str, Any]) -> DrillReport:
        """The report, when the actors are gone; it is in the run's folder, too."""
        report = self._report
        # A run whose disk is full may have left no summary.
        report.finished, report.reason = summary.get("finished", False), summary.get("reason", "")
        report.wall_seconds, report.deaths = summary.get("wall_seconds", 0.0), summary.get("deaths", {})
        report.stages, report.rewinds = summary.get("stages", []), summary.get("rewinds", [])
        report.faults += summary.get("set_aside", [])
        report.strikes = self._strikes
        sure = [each for each in self._strikes if each.confirmed]
        report.hit = dict(Counter(f"{each.kind} {each.whom}" for each in sure))
        report.retried = self._tally.counts()
        report.faults += [f"{each.fault}: not recovered" for each in self._strikes if each.outcome == "not recovered"]
        report.faults += [f"{fault}: never happened" for fault in self._never]
        self._look_at_archive(report)
        report.ended_as_it_must = self._ended_for_a_full_disk()
        left = len(sandbox_processes()) + sum(len(list(cgroups_of(pid))) for pid in self._environments if pid)
        if left:
            report.faults.append(f"{left} processes and cgroups of sandboxes were left behind")
        with contextlib.suppress(OSError):  # the disk may be what was hit; the report is returned in any case
            write_json(self._folder / REPORT_FILE, asdict(report) | {"passed": report.passed})
        return report

    def _ended_for_a_full_disk(self) -> bool:
        full = any(each.kind == "fill" and each.confirmed for each in self._strikes)
        said = os.strerror(errno.ENOSPC) in self._report.reason
        return (
            not self._report.finished and full and said and newest_checkpoint(self._folder / CHECKPOINTS)[0] is not None
        )

    def _look_at_archive(self, report: DrillReport) -> None:
        try:
            check = check_archive(self._folder / "archive")
        except ArchiveError as error:
            report.faults.append(f"the archive: {error}")
            return
        report.rollouts_stored = check.trajectories
        report.rollouts_stored_twice = sum(count - 1 for count in check.repeated.values())
        report.faults += [f"the archive: {flaw}" for flaw in check.flaws if not flaw.torn]
        if report.finished and (fault := books_fault(self._recipe, self._folder)):
            report.faults.append(fault)


class Tally:
    """Counts that go on rising where an actor that is started again begins at zero."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._seen: dict[tuple[str, int, str], int] = {}

    async def look(self, stage: RayStage, name: str, *, is_environment: bool) -> None:
        """Ask an actor for its counts. Raises `ActorError` if it does not answer."""
        ref = ActorRef(name)
        incarnation = stage.incarnation(ref)
        if is_environment:
            environment = await stage.port.ask(ref, DescribeEnvironment(), LOOK_DEADLINE_S)
            counts = {"calls run again in their environment": environment.retried}
        else:
            rollouts = await stage.port.ask(ref, DescribeRollouts(), LOOK_DEADLINE_S)
            counts = {
                "turns sampled again elsewhere": rollouts.turns_again,
                "calls tried on another environment": rollouts.calls_elsewhere,
            }
        for what, count in counts.items():
            key = (name, incarnation, what)
            self._totals[what] += max(0, count - self._seen.get(key, 0))
            self._seen[key] = max(count, self._seen.get(key, 0))

    def counts(self) -> dict[str, int]:
        return dict(self._totals)


def read_plan(path: Path) -> ActorFaultPlan:
    """A plan from a JSON file. Raises `ValueError` that names the fault and the field."""
    try:
        return ActorFaultPlan.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no fault plan: {error}") from error
