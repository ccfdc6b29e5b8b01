"""The contract between whoever wants code to run and whoever runs it.

Invariants:
- each `ToolCall` gets exactly one `ToolResult` with the same `id`;
- `status` says whose fault a failure was: everything except `success` and `sandbox_failure` is the
  caller's (a *tool error*, which resampling counts), `sandbox_failure` is ours (retried, counted nowhere);
- nothing in a result that the model reads depends on the wall clock.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

PYTHON_TOOL = "python_code_with_standard_io"
"""Stateless Python with standard input; arguments `code` and `input` (rStar2-Agent's release)."""
JUPYTER_TOOL = "jupyter_code"
"""A cell of a session, whose names persist from cell to cell; argument `code`."""
ToolName = Literal["python_code_with_standard_io", "jupyter_code"]
TOOLS: tuple[ToolName, ...] = get_args(ToolName)

Status = Literal[
    "success",  # exit code 0
    "error",  # any other exit code, or an uncaught exception
    "timeout",  # our wall-clock limit
    "memory",  # our memory limit
    "output_limit",  # our cap on stdout + stderr
    "killed",  # a signal that is neither ours nor a limit's
    "invalid_call",  # malformed JSON, unknown tool, wrong arguments: nothing ran
    "sandbox_failure",  # the sandbox's own fault
]

NOT_TOOL_ERRORS: frozenset[str] = frozenset({"success", "sandbox_failure"})


class Limits(BaseModel):
    """What one call may use. Every limit is ours to enforce from outside the interpreter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wall_seconds: Annotated[float, Field(gt=0, le=3600)] = 4.0
    """Wall-clock seconds from the start of user code; fractions work."""
    memory_bytes: Annotated[int, Field(ge=16 << 20)] = 512 << 20
    """Bytes of memory for all processes of the call together."""
    processes: Annotated[int, Field(ge=1)] = 32
    """Processes and threads of the call, all together."""
    output_bytes: Annotated[int, Field(ge=1024)] = 64 << 10
    """Bytes kept of stdout and of stderr each; a call that writes more is stopped (`output_limit`)."""
    scratch_bytes: Annotated[int, Field(ge=4096)] = 16 << 20
    """Size of the writable scratch directory."""


class ToolCall(BaseModel):
    """One request to run code.

    Raises `pydantic.ValidationError` for unknown fields or wrong types.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Unique within a run; the result carries it back."""
    tool: str = PYTHON_TOOL
    code: str
    input: str = ""
    """What the code can read from standard input."""
    limits: Limits = Limits()
    session: str = ""
    """Of a cell: the session that it belongs to."""


class Cell(BaseModel):
    """A cell that a session's state is made of: what has to be run again where its process is lost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    limits: Limits


class ToolResult(BaseModel):
    """What came of one `ToolCall`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    status: Status
    stdout: str = ""
    """Decoded as UTF-8, undecodable bytes replaced by U+FFFD; includes the echo of the last expression."""
    stderr: str = ""
    """As `stdout`; tracebacks show the user's own lines only."""
    exit_code: int | None = None
    """Exit code of the interpreter; None if it was ended by a signal or never ran."""
    signal: int | None = None
    """The signal that ended the interpreter, if one did."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    """Of a cell: beyond what its session held before."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    reason: str = ""
    """One sentence on what went wrong, for people and models; empty on success."""
    restarted: bool = False
    """Of a cell: whether its session's earlier process was gone, so that a new one was made."""
    replayed: int = 0
    """Of a cell: how many earlier ones were run again before it, because of that."""
    session_ended: bool = False
    """Of a cell: whether it ended its session's process. It is not among those that are run again."""

    @property
    def is_tool_error(self) -> bool:
        """Whether resampling counts this call as an error."""
        return self.status not in NOT_TOOL_ERRORS


def sandbox_failure(call: ToolCall, reason: str) -> ToolResult:
    """The result of a call that was not run, or not to its end, through no fault of its own."""
    return ToolResult(id=call.id, status="sandbox_failure", reason=reason)
