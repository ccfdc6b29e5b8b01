"""What Code Judge's HTTP API says: its field names, and what our results are in its words.

Source: github.com/0xWJ/code-judge (README and `app/model.py`), the tool server of rStar2-Agent's release.

Invariants:
- without the extension, an answer has just Code Judge's fields: its own client builds records from them and fails
  on any other;
- what is wrong with a request is found and said in less memory than the request takes;
- what the sandbox did not run is told as `queue_timeout` (try again) or `internal_error`, never as the program's fault.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, FailFast, Field

from env.tool_call import Status, ToolResult

LANGUAGE = "python"
MOST_SUBMISSIONS = 100_000
"""Of a batch: each costs some kilobytes while it waits for the others, however short it is."""
MOST_OPTIONS = 100

Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
"""`worker_timeout`: the program ran too long. `queue_timeout`: it never ran, try again; both clients do.
`invalid_input`: this server does not run such programs. `internal_error`: the sandbox failed."""

EXTENSION = frozenset({"status", "exit_code", "signal", "cpu_seconds", "peak_memory_bytes"})
"""The fields that are ours."""


def _few(options: object) -> object:
    """Before each is looked at: what is wrong with a million of them takes gigabytes to say."""
    if isinstance(options, dict) and len(options) > MOST_OPTIONS:
        raise ValueError(f"there may be at most {MOST_OPTIONS} options, not {len(options)}")
    return options


class Submission(BaseModel):
    """A program to run, and what it should print."""

    sub_id: str | None = None
    """Comes back in the result; made up if there is none."""
    type: str
    """`python`; anything else is answered with `invalid_input`."""
    options: Annotated[dict[str, str] | None, BeforeValidator(_few)] = None
    """Accepted and not used, as by Code Judge for python."""
    solution: str
    """The program. Unlike in a notebook, the value of a last expression is not printed."""
    input: str | None = None
    """Its standard input."""
    expected_output: str | None = None
    """Compared with what it prints, white space at both ends aside."""


class BatchSubmission(BaseModel):
    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: Annotated[list[Submission], Field(min_length=1, max_length=MOST_SUBMISSIONS), FailFast()]
    """The first that is none is named, and no others looked at."""


class JudgeResult(BaseModel):
    """What came of one submission."""

    sub_id: str
    success: bool
    """Ran to its end with exit code 0, and printed what was expected."""
    run_success: bool
    """Ran to its end with exit code 0."""
    cost: float
    """Wall-clock seconds of the program."""
    reason: Reason = ""
    status: Status
    exit_code: int | None = None
    """None if a signal or a limit ended the program, or it never ran."""
    signal: int | None = None
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


class RunResult(JudgeResult):
    """As `JudgeResult`, with what the program wrote."""

    stdout: str | None = None
    stderr: str | None = None
    """Where a limit ended the program, or it never ran, a last line says so."""


class BatchJudgeResult(BaseModel):
    sub_id: str
    results: list[JudgeResult]
    """In the order of the submissions."""


class BatchRunResult(BaseModel):
    sub_id: str
    results: list[RunResult]
    """In the order of the submissions."""


class ServerStatus(BaseModel):
    """Code Judge's own fields and no others; `/metrics` says more."""

    queue: int
    """Submissions that wait for their turn."""
    num_workers: int
    """Programs that can run at once."""


_OWN_WORDS: frozenset[Status] = frozenset({"success", "error"})
"""Statuses that a program's own output explains."""


def told(submission: Submission, sub_id: str, result: ToolResult, reason: Reason | None = None) -> RunResult:
    """A result in Code Judge's words; `reason` overrides what the status says."""
    ran = result.status == "success"
    expected = submission.expected_output
    stderr = result.stderr
    if result.status not in _OWN_WORDS:
        stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + result.reason + "\n"
    return RunResult(
        sub_id=sub_id,
        success=ran and (expected is None or result.stdout.strip() == expected.strip()),
        run_success=ran,
        cost=result.wall_seconds,
        reason=_reason(result.status) if reason is None else reason,
        status=result.status,
        exit_code=result.exit_code,
        signal=result.signal,
        cpu_seconds=result.cpu_seconds,
        peak_memory_bytes=result.peak_memory_bytes,
        stdout=result.stdout,
        stderr=stderr,
    )


def _reason(status: Status) -> Reason:
    match status:
        case "timeout":
            return "worker_timeout"
        case "sandbox_failure":
            return "internal_error"
        case "invalid_call":
            return "invalid_input"
    return ""
