"""Several environments as one: whoever has calls to run asks a pool, which finds an environment for each.

Invariants:
- `run` gives exactly one result for each call, whatever dies; a call that the sandbox failed, or whose
  environment died, is tried on another one before the failure is given out;
- an environment that is slow because much waits there is not taken for a dead one: a deadline that passes only makes
  the pool ask whether work goes on;
- whoever gives up on a call has it cancelled where it waits or runs.
"""

from __future__ import annotations

import asyncio
import logging

from actors.messages import (
    CallFinished,
    CancelCalls,
    DescribeEnvironment,
    EnvironmentStatus,
    RunCall,
    VerifyAnswer,
)
from actors.system.actor import ActorError, ActorLost, ActorRef, DeadlineExceeded, Port
from env.tool_call import ToolCall, ToolResult
from policies.dispatch import LeastOutstanding
from policies.trajectory import Verdict

log = logging.getLogger(__name__)

CALL_GRACE_S = 120.0
"""Seconds beyond its own limit after which a call's environment is asked whether it works still."""
VERIFICATION_DEADLINE_S = 900.0
"""An environment that has not judged an answer by then is taken for dead: a queue of answers may wait before it."""
STATUS_DEADLINE_S = 30.0
FAILURES = 3
"""After environments have said so often that their sandboxes failed a call (after trying again), it is given up."""
PAUSES_S = (0.25, 1.0, 4.0, 16.0)
"""After losing that many environments on one call, the wait before another try: those that died need seconds to come
back. The first loss costs no wait where there is another environment."""


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
        self._looks: dict[str, asyncio.Task[int | None]] = {}
        self.retried_elsewhere = 0
        """Calls given to another environment, or to a restarted one, because one had failed them."""

    async def run(self, call: ToolCall, trajectory: str = "") -> ToolResult:
        """Run one call. What failed everywhere is a `sandbox_failure`; never raises for a failure."""
        avoid: frozenset[str] = frozenset()
        failures = losses = 0
        while True:
            name = self._dispatch.choose(avoid)
            try:
                result = (await self._ask(name, RunCall(call=call, trajectory=trajectory))).result
                failures += result.status == "sandbox_failure"
            except ActorError as error:
                losses += 1
                result = ToolResult(id=call.id, status="sandbox_failure", reason=f"{type(error).__name__}: {error}")
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
                return (await self._port.ask(self._environments[name], request, VERIFICATION_DEADLINE_S)).verdict
            except (ActorLost, DeadlineExceeded) as error:
                log.warning("an answer: %s failed to verify it: %s", name, error)
            finally:
                self._dispatch.finished(name)
            avoid |= {name}
        raise ActorLost(f"{FAILURES} environments were lost while they verified one answer; see their logs")

    async def _ask(self, name: str, request: RunCall) -> CallFinished:
        """One attempt. Raises `ActorError` if the environment is lost, broken or stuck."""
        environment, seen = self._environments[name], None
        try:
            while True:
                try:
                    deadline = request.call.limits.wall_seconds + CALL_GRACE_S
                    return await self._port.ask(environment, request, deadline)
                except DeadlineExceeded:
                    done = await self._calls_done(name)
                    if done is None or done == seen:
                        raise
                    seen = done  # others get their turn there: ask for the same call again, which runs once
        except (asyncio.CancelledError, DeadlineExceeded):
            self._port.tell(environment, CancelCalls(calls=(request.call.id,)))
            raise

    async def _calls_done(self, name: str) -> int | None:
        """How many calls an environment has done or dropped; None if it does not say. Asked once for all who wait."""
        look = self._looks.get(name)
        if look is None:
            look = self._looks[name] = self._port.start_task(self._look(name))
            look.add_done_callback(lambda _: self._looks.pop(name))
        return await asyncio.shield(look)

    async def _look(self, name: str) -> int | None:
        try:
            status: EnvironmentStatus = await self._port.ask(
                self._environments[name], DescribeEnvironment(), STATUS_DEADLINE_S
            )
        except ActorError as error:
            log.warning("%s does not say how it is: %s", name, error)
            return None
        return status.calls_run + status.cancelled
