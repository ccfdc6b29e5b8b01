"""How a call ended, and what that is called. One place for all isolation modes; pure.

Invariants:
- the verdict comes from init's own report, the kernel's out-of-memory count and what we did ourselves, never from what
  the program wrote (a traceback's last line tells a `MemoryError` from other errors, and changes no blame);
- limits come before what the program itself did: they explain it;
- a program that was refused memory within its limit has not failed: whatever came of it is the sandbox's failure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from env.tool_call import Limits, Status, ToolCall, ToolResult

Cause = Literal["", "timeout", "output_limit", "aborted", "start"]


@dataclass
class Ended:
    """How a call ended, before it is given a status."""

    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    wait_status: int | None
    """As wait(2) gives it, from init; None if init did not report."""
    cause: Cause
    """Why we ended it, if we did."""
    out_of_memory: bool
    """Whether the kernel killed for memory."""
    starved: bool
    """Whether it did so, or refused memory, though the call was within its limit."""
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    log: str
    """What nsjail and init had to say."""


def settled(cause: Cause, limits: Limits, wall_seconds: float, reported: bool) -> Cause:
    """Why we ended a program after all, now that it is known how long it ran; `reported` if it ended by itself."""
    if reported and cause == "timeout" and wall_seconds < limits.wall_seconds:
        return ""  # just before we got to it
    if reported and not cause and wall_seconds > limits.wall_seconds:
        return "timeout"  # we were too busy to end it in time
    return cause


def verdict(call: ToolCall, limits: Limits, ended: Ended) -> ToolResult:
    """What came of a call, in the contract's words. Pure."""
    status, reason = _judge(limits, ended)
    exit_code = signal_number = None
    if ended.wait_status is not None and status not in ("timeout", "output_limit"):
        code = os.waitstatus_to_exitcode(ended.wait_status)
        exit_code, signal_number = (code, None) if code >= 0 else (None, -code)
    return ToolResult(
        id=call.id,
        status=status,
        stdout=ended.stdout.decode("utf-8", "replace"),
        stderr=ended.stderr.decode("utf-8", "replace"),
        exit_code=exit_code,
        signal=signal_number,
        wall_seconds=ended.wall_seconds,
        cpu_seconds=ended.cpu_seconds,
        peak_memory_bytes=ended.peak_bytes,
        stdout_truncated=ended.stdout_truncated,
        stderr_truncated=ended.stderr_truncated,
        reason=reason,
    )


_MEMORY_ERROR = re.compile(rb"(?:^|\n)(?:[\w.]*\.)?_?(?:Array)?MemoryError\b[^\n]*\n?\Z")


def _judge(limits: Limits, ended: Ended) -> tuple[Status, str]:
    """Status and reason. Limits come before what the program itself did: they explain it."""
    code = None if ended.wait_status is None else os.waitstatus_to_exitcode(ended.wait_status)
    memory = f"The program needed more than its limit of {limits.memory_bytes / (1 << 20):g} MiB of memory."
    if ended.cause == "aborted":
        return "sandbox_failure", "The call was given up while it ran."
    if ended.stdout_truncated or ended.stderr_truncated:
        return "output_limit", f"The program wrote more than its limit of {limits.output_bytes} bytes."
    if ended.starved and code != 0:
        return "sandbox_failure", "The machine was out of memory, and refused the program what it may have."
    if ended.out_of_memory and code != 0:
        return "memory", memory
    if ended.cause == "timeout":
        return "timeout", f"The program ran longer than its limit of {limits.wall_seconds:g} seconds."
    if code is None:
        said = " ".join(line for line in ended.log.splitlines() if "no version information available" not in line)
        return "sandbox_failure", f"The sandbox itself failed: {said or 'it ended without a report'}"
    if code == 1 and _MEMORY_ERROR.search(ended.stderr):
        return "memory", memory
    if code < 0:
        return "killed", f"The program was ended by signal {-code}."
    if code > 0:
        return "error", f"The program ended with exit code {code}."
    return "success", ""
