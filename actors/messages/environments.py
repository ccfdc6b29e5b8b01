"""What environments are asked, and what they answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Message, Request
from env.tool_call import ToolCall, ToolResult
from policies.trajectory import Verdict


class CallFinished(Message, tag="environment.finished"):
    result: ToolResult


class RunCall(Request[CallFinished], tag="environment.run"):
    """Run one tool call; asking again with the same call id gives the same result."""

    call: ToolCall
    trajectory: str
    """The rollout that makes the call (sessions and affinity go by it)."""


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
    answers_compared: int
    """Answers that could not be judged at sight."""
    comparisons_timed_out: int


class DescribeEnvironment(Request[EnvironmentStatus], tag="environment.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"
