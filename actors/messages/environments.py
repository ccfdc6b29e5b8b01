"""What environments are asked, and what they answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request
from env.tool_call import Cell, ToolCall, ToolResult
from policies.trajectory import Record, Verdict


class CallFinished(Message, tag="environment.finished"):
    result: ToolResult
    history_missing: bool = False
    """The cell was not run: the environment does not know its session's earlier ones. Ask again, and send them."""


class SessionSoFar(Record):
    """What a session's state is, before the cell that is to be run."""

    last_call: str
    """Id of the last call that was answered; empty before the first."""
    cells: tuple[Cell, ...] | None
    """What the state is made of; None if the environment should know."""


class RunCall(Request[CallFinished], tag="environment.run"):
    """Run one tool call; asking again with the same call id gives the same result.

    A cell's `session` names one attempt at a rollout: `TRAJECTORY@NAME-INCARNATION-SERIAL`.
    """

    call: ToolCall
    session: SessionSoFar | None = None
    """Given with cells."""


class EndSessions(Request[Done], tag="environment.end_sessions"):
    """These sessions are over: end what runs in them, and keep nothing of them. Unknown ones are over already.

    It travels in the lane of `RunCall`, so that it can't overtake a session's cells.
    """

    sessions: tuple[str, ...]


class EndSessionsOf(Request[Done], tag="environment.end_sessions_of"):
    """An incarnation of a rollout actor is gone, and its sessions are over."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    owner: str
    """`NAME-INCARNATION`, as names of sessions have it."""


class AnswerVerified(Message, tag="environment.verified"):
    verdict: Verdict


class VerifyAnswer(Request[AnswerVerified], tag="environment.verify"):
    """Compare a final answer, already extracted, with the gold. Pure: asking again does no harm."""

    extracted: str
    gold: str


class CancelCalls(Message, tag="environment.cancel"):
    """Nobody wants these calls any more: end what runs, forget what waits. Calls that are over are left alone.

    It travels in the lane of `RunCall`, so that it can't overtake the call that it cancels, nor a later attempt of it.
    Whoever still asks for such a call is told `sandbox_failure`.
    """

    calls: tuple[str, ...]
    """Ids."""


class EnvironmentStatus(Message, tag="environment.status"):
    sandbox: str
    """What keeps calls away from the host, such as `nsjail`."""
    isolation: str
    """How calls are kept apart from each other."""
    weaknesses: tuple[str, ...]
    """What the host can't give, and what stands in for it; usually empty."""
    calls_run: int
    sandbox_failures: int
    """Of the calls, those that the sandbox failed even when they were tried again."""
    retried: int
    """Runs that were made because the sandbox had failed one before."""
    cancelled: int
    """Calls that nobody wanted any more; not counted in `calls_run`."""
    waiting: int
    running: int
    live_sessions: int
    """Sessions that have a process."""
    answers_compared: int
    """Answers that could not be judged at sight."""


class DescribeEnvironment(Request[EnvironmentStatus], tag="environment.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"
