"""The actor in front of the sandbox: takes tool calls, answers each with its result; and compares final answers.

Calls that are asked for together arrive together (the mailbox packs them into frames) and are answered one by one, as
soon as each is done: there is no batch that its slowest call could hold back. When they run, `env.call_scheduler` says.

Invariants:
- a call id is run once: asked again while it runs or soon after, the same result is given;
- each call gets exactly one answer, and waiting ones cost little (`env.call_scheduler`);
- a cell runs only after those that its session is made of, else the asker is told that they are missing; sessions end
  when they are over or their owner is gone;
- a cancelled call is answered at once, never started if it waited, and its program is ended if it ran;
- answers are compared in processes that are killed when they take too long, so that no loop waits for mathematics.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from actors.messages import (
    AnswerVerified,
    CallFinished,
    CancelCalls,
    DescribeEnvironment,
    EndSessions,
    EndSessionsOf,
    EnvironmentStatus,
    RunCall,
    SessionSoFar,
    VerifyAnswer,
)
from actors.simulated_interpreters import SimulatedInterpreters
from actors.supervision import owner_of
from actors.system.actor import Actor, CannotGoOn, handles
from actors.system.kill_point import reached
from actors.verification import Verifier
from env import preload
from env.call_scheduler import WORKERS_PER_CORE, CallScheduler
from env.faults import FaultPlan, FaultyInterpreters
from env.image import Image, ImageIncomplete
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.preflight import check_host
from env.sessions import SessionOptions
from env.tool_call import Limits, ToolCall, ToolResult, sandbox_failure
from env.zygotes import RECYCLE_AFTER
from policies.scripted import Script

RECENT_RESULTS = 4096
RECENT_CHARACTERS = 32 << 20
"""How many results, and how much of their text, are kept for those who ask again."""


class HostUnsafe(CannotGoOn):
    """This machine can't run generated code safely; the text says what is missing, and what mends it."""


class RecentResults:
    """The last results, by call id; bounded in number and in size."""

    def __init__(self, count: int, characters: int) -> None:
        self._most, self._room = count, characters
        self._results: OrderedDict[str, ToolResult] = OrderedDict()

    def get(self, call_id: str) -> ToolResult | None:
        return self._results.get(call_id)

    def keep(self, result: ToolResult) -> None:
        earlier = self._results.pop(result.id, None)
        if earlier is not None:
            self._room += _size(earlier)
        self._results[result.id] = result
        self._room -= _size(result)
        while len(self._results) > self._most or (self._room < 0 and len(self._results) > 1):
            _, dropped = self._results.popitem(last=False)
            self._room += _size(dropped)


def _size(result: ToolResult) -> int:
    return len(result.stdout) + len(result.stderr) + len(result.reason)


class EnvironmentActor(Actor):
    """Runs tool calls in sandboxed interpreters on its own machine."""

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        cores: int | None = None,
        libraries: str | None = None,
        run_id: str = "",
        isolation: IsolationKind = "zygote",
        preloaded: Sequence[str] = preload.LIBRARIES,
        recycle_after: int = RECYCLE_AFTER,
        faults: FaultPlan | None = None,
        workload: Script | None = None,
        sessions: SessionOptions | None = None,
        check_host: bool = False,
    ) -> None:
        """`limits` are the most that a call gets.

        `cores` calls run at once (the machine's by default), and up to `workers` (four times as many) while cores idle.
        `libraries` is the folder that `python -m env.image` built, by default the project's own. How calls are kept
        apart (`isolation`, `preloaded`, `recycle_after`, `sessions`) is as in `env.interpreters.Interpreters`.
        With `check_host`, it starts only where a trial program can be run safely.
        `faults` are made to happen to its jails. With a `workload` nothing is run: it says what comes of each call, and
        how long that takes.
        """
        self._limits = limits or Limits()
        cores = cores or os.cpu_count() or 1
        self._workers = workers or WORKERS_PER_CORE * cores
        self._cores = min(cores, self._workers)
        self._image = Image(libraries=Path(libraries)) if libraries else Image()
        self._run_id, self._faults, self._check_host = run_id, faults, check_host
        self._isolation: IsolationKind = isolation
        self._preloaded, self._recycle_after = tuple(preloaded), recycle_after
        self._session_options = sessions or SessionOptions()
        self._open: dict[str, asyncio.Future[ToolResult]] = {}
        self._calls_run = self._sandbox_failures = self._cancelled = 0
        self._answers_compared = 0
        self._workload = workload
        self._recent = RecentResults(RECENT_RESULTS, RECENT_CHARACTERS)

    async def start(self) -> None:
        """Raises `HostUnsafe` if code can't be run safely, or not at all."""
        if self._check_host:
            problems = await self.port.offload(lambda: 0.0, lambda: check_host(self._image, self._isolation))
            if problems:
                raise HostUnsafe("\n".join(map(str, problems)))
        try:
            self._interpreters = self._real() if self._workload is None else self._simulated(self._workload)
        except ImageIncomplete as error:
            raise HostUnsafe(str(error)) from error
        runs = self._interpreters
        if self._faults is not None:
            runs = FaultyInterpreters(runs, self._faults)
        self._scheduler = CallScheduler(runs, cores=self._cores, workers=self._workers)
        self._verifier = Verifier(self._cores)

    def _real(self) -> Interpreters:
        # Where engines share the cores, calls go first: their results are what makes the engines' batches large.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        return Interpreters(
            self._limits,
            self._workers,
            self._image,
            self._run_id,
            isolation=self._isolation,
            preloaded=self._preloaded,
            recycle_after=self._recycle_after,
            sessions=self._session_options,
        )

    def _simulated(self, workload: Script) -> SimulatedInterpreters:
        self._cores = self._workers  # nothing is gained by looking at this machine's cores
        return SimulatedInterpreters(workload, self._workers, self.port.clock)

    async def stop(self) -> None:
        await asyncio.gather(self._scheduler.close(), self._interpreters.close(), self._verifier.close())

    async def work_done(self) -> int:
        """Calls and answers: one that waits gets on as those before it do."""
        return self._calls_run + self._cancelled + self._answers_compared

    @handles(RunCall)
    async def on_run_call(self, request: RunCall) -> CallFinished:
        reached("tool")
        call = request.call
        result = self._recent.get(call.id)
        if result is None:
            if (
                call.id not in self._open
                and request.session is not None
                and not await self._knows(call, request.session)
            ):
                missing = sandbox_failure(call, "The session is not known here.")
                return CallFinished(result=missing, history_missing=True)
            answer = self._open.get(call.id) or self._take(call)
            result = await asyncio.shield(answer)  # who gives up does not take the result from the others
        return CallFinished(result=result)

    async def _knows(self, call: ToolCall, so_far: SessionSoFar) -> bool:
        """Whether a cell's session is what it should be, if need be because it is now made to be that."""
        assert isinstance(self._interpreters, Interpreters), "nothing that is simulated has sessions"
        sessions = await self._interpreters.sessions()
        if sessions.is_current(call.session, so_far.last_call):
            return True
        if so_far.cells is None:
            return False
        await self._interpreters.adopt(call.session, so_far.cells, so_far.last_call)
        return True

    @handles(EndSessions)
    async def on_end_sessions(self, message: EndSessions) -> None:
        await self._end_sessions(message.sessions)

    @handles(EndSessionsOf)
    async def on_end_sessions_of(self, message: EndSessionsOf) -> None:
        open_ = self._interpreters.open_sessions() if isinstance(self._interpreters, Interpreters) else ()
        await self._end_sessions([name for name in open_ if owner_of(name) == message.owner])

    async def _end_sessions(self, names: Sequence[str]) -> None:
        if names and isinstance(self._interpreters, Interpreters):
            sessions = await self._interpreters.sessions()
            await asyncio.gather(*[sessions.end(name) for name in names])

    @handles(CancelCalls)
    async def on_cancel(self, message: CancelCalls) -> None:
        for call_id in message.calls:
            answer = self._open.get(call_id)
            if answer is not None and not answer.done():
                del self._open[call_id]  # the same id may be asked for anew
                self._cancelled += 1
                answer.set_result(ToolResult(id=call_id, status="sandbox_failure", reason="The call was cancelled."))

    @handles(DescribeEnvironment)
    async def on_describe(self, _: DescribeEnvironment) -> EnvironmentStatus:
        described = await self._interpreters.describe()
        return EnvironmentStatus(
            sandbox=described.sandbox,
            isolation=described.isolation,
            weaknesses=described.weaknesses,
            calls_run=self._calls_run,
            sandbox_failures=self._sandbox_failures,
            retried=self._scheduler.retried,
            cancelled=self._cancelled,
            waiting=self._scheduler.waiting,
            running=self._scheduler.running,
            live_sessions=described.live_sessions,
            answers_compared=self._answers_compared,
        )

    @handles(VerifyAnswer)
    async def on_verify(self, request: VerifyAnswer) -> AnswerVerified:
        verdict = await self._verifier.compare(request.extracted, request.gold)
        self._answers_compared += 1
        return AnswerVerified(verdict=verdict)

    def _take(self, call: ToolCall) -> asyncio.Future[ToolResult]:
        answer = self._open[call.id] = self._scheduler.submit(call)
        answer.add_done_callback(partial(self._finish, call.id))
        return answer

    def _finish(self, call_id: str, answer: asyncio.Future[ToolResult]) -> None:
        if self._open.get(call_id) is not answer:
            return  # it was cancelled
        del self._open[call_id]
        result = answer.result()
        self._calls_run += 1
        self._sandbox_failures += result.status == "sandbox_failure"
        if result.status != "sandbox_failure":  # the next one who asks may be luckier
            self._recent.keep(result)
