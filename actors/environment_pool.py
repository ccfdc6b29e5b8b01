"""Several environments as one: whoever has calls to run asks a pool, which finds an environment for each.

Invariants:
- `run` gives exactly one result for each call, whatever dies; a call that the sandbox failed, or whose
  environment died, is tried on another one before the failure is given out;
- an environment that is slow because much waits there is not taken for a dead one, as long as it gets on;
- whoever gives up on a call has it cancelled where it waits or runs;
- a trajectory's cells run one after the other, on the environment that has its session. Where that is lost, or has
  forgotten, the earlier cells are sent along and run again. `end_session` frees it wherever it is.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any

from actors.messages import (
    CallFinished,
    CancelCalls,
    EndSessions,
    RunCall,
    SessionSoFar,
    VerifyAnswer,
)
from actors.supervision import insist
from actors.system.actor import ActorError, ActorLost, ActorRef, DeadlineExceeded, Port
from env.tool_call import JUPYTER_TOOL, Cell, ToolCall, ToolResult, sandbox_failure
from policies.dispatch import LeastOutstanding
from policies.trajectory import Verdict

log = logging.getLogger(__name__)

CALL_GRACE_S = 120.0
"""Seconds beyond its own limit after which a call's environment is asked whether it gets on."""
VERIFICATION_DEADLINE_S = 900.0
"""An environment that has not judged an answer by then is asked whether it gets on: a queue may wait before it."""
FAILURES = 3
"""After environments have said so often that their sandboxes failed a call (after trying again), it is given up."""
PAUSES_S = (0.25, 1.0, 4.0, 16.0)
"""After losing that many environments on one call, the wait before another try: those that died need seconds to come
back. The first loss costs no wait where there is another environment."""


@dataclass
class _Session:
    """What this pool knows of a trajectory's session."""

    key: str
    """Its name where it runs: of this attempt at the trajectory only."""
    cells: list[Cell] = field(default_factory=list)
    last_call: str = ""
    environment: str = ""
    """Which one has it; empty before the first cell."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnvironmentPool:
    """Runs calls on whichever environment has the fewest.

    Example:
        pool = EnvironmentPool(stage.port, [ActorRef("environment-0"), ActorRef("environment-1")])
        result = await pool.run(ToolCall(id="1", code="print(6 * 7)"))
    """

    def __init__(self, port: Port, environments: list[ActorRef]) -> None:
        """Raises `ValueError` if there is no environment."""
        self._port = port
        self._environments = {ref.name: ref for ref in environments}
        self._dispatch = LeastOutstanding(list(self._environments))
        self._sessions: dict[str, _Session] = {}
        self.retried_elsewhere = 0
        """Calls given to another environment, or to a restarted one, because one had failed them."""

    def run(self, call: ToolCall, trajectory: str = "") -> CoroutineType[Any, Any, ToolResult]:
        """Run one call. What failed everywhere is a `sandbox_failure`; never raises for a failure.

        Cells belong to the session of their `trajectory`.
        """
        return self._run_cell(call, trajectory) if call.tool == JUPYTER_TOOL else self._run(call, None)

    async def _run_cell(self, call: ToolCall, trajectory: str) -> ToolResult:
        session = self._sessions.get(trajectory)
        if session is None:
            session = self._sessions[trajectory] = _Session(f"{trajectory}@{self._port.fresh_id()}")
        async with session.turn:
            result = await self._run(call.model_copy(update={"session": session.key}), session)
            if result.status != "sandbox_failure":
                session.last_call = call.id
                if result.status != "invalid_call" and not result.session_ended:
                    session.cells.append(Cell(code=call.code, limits=call.limits))
        return result

    def end_session(self, trajectory: str) -> None:
        """The trajectory is over; its session, if it has one, is freed."""
        session = self._sessions.pop(trajectory, None)
        if session is not None and session.environment:
            self._free(session)

    def _free(self, session: _Session) -> None:
        """Whoever has a session need not keep it any longer. If it is dead, there is nothing to free."""
        ended = EndSessions(sessions=(session.key,))
        self._port.start_task(insist(self._port, self._environments[session.environment], ended))

    async def _run(self, call: ToolCall, session: _Session | None) -> ToolResult:
        avoid: frozenset[str] = frozenset()
        failures = losses = 0
        while True:
            name = self._dispatch.choose(avoid, session.environment if session is not None else "")
            try:
                if session is None:
                    result = (await self._ask(name, RunCall(call=call))).result
                else:
                    result = await self._ask_for_cell(name, call, session)
                failures += result.status == "sandbox_failure"
            except ActorError as error:
                losses += 1
                result = sandbox_failure(call, f"{type(error).__name__}: {error}")
            finally:
                self._dispatch.finished(name)
            if result.status != "sandbox_failure":
                return result
            log.warning("call %s: %s: %s", call.id, name, result.reason)
            avoid |= {name}
            everywhere = len(avoid) == len(self._environments)
            if failures == FAILURES or losses > len(PAUSES_S):
                return result
            if losses and (everywhere or losses > 1):
                await self._port.clock.sleep(PAUSES_S[losses - 1])
            if everywhere:
                avoid = frozenset()
            self.retried_elsewhere += 1

    async def verify(self, extracted: str, gold: str) -> Verdict:
        """Whether an extracted answer equals the gold; where an environment died, another is asked.

        Raises `ActorLost` if none gives a verdict.
        """
        avoid: frozenset[str] = frozenset()
        request = VerifyAnswer(extracted=extracted, gold=gold)
        for _ in range(FAILURES):
            name = self._dispatch.choose(avoid)
            try:
                environment = self._environments[name]
                verified = await self._port.ask(environment, request, VERIFICATION_DEADLINE_S, unless_at_work=True)
                return verified.verdict
            except (ActorLost, DeadlineExceeded) as error:
                log.warning("an answer: %s failed to verify it: %s", name, error)
            finally:
                self._dispatch.finished(name)
            avoid |= {name}
        raise ActorLost(f"{FAILURES} environments were lost while they verified one answer; see their logs")

    async def _ask_for_cell(self, name: str, call: ToolCall, session: _Session) -> ToolResult:
        """One attempt at a cell; sends the earlier ones along where they are not known. Raises as `_ask`."""
        cells = tuple(session.cells)
        known = name == session.environment
        if not known and session.environment:
            self._free(session)
        session.environment = name
        so_far = SessionSoFar(last_call=session.last_call, cells=None if known else cells)
        finished = await self._ask(name, RunCall(call=call, session=so_far))
        if finished.history_missing:
            so_far = SessionSoFar(last_call=session.last_call, cells=cells)
            finished = await self._ask(name, RunCall(call=call, session=so_far))
        return finished.result

    async def _ask(self, name: str, request: RunCall) -> CallFinished:
        """One attempt. Raises `ActorError` if the environment is lost, broken or stuck."""
        environment = self._environments[name]
        deadline = request.call.limits.wall_seconds + CALL_GRACE_S
        try:
            return await self._port.ask(environment, request, deadline, unless_at_work=True)
        except (asyncio.CancelledError, DeadlineExceeded):
            self._port.tell(environment, CancelCalls(calls=(request.call.id,)))
            raise
