"""What is said about a call, from what is known about its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.tool_call import Limits, Status, ToolCall
from env.verdict import Ended, verdict

CALL = ToolCall(id="c", code="1")
LIMITS = Limits(wall_seconds=2.5, memory_bytes=64 << 20)
FINE = Ended(
    stdout=b"out",
    stderr=b"",
    stdout_truncated=False,
    stderr_truncated=False,
    wait_status=0,
    cause="",
    out_of_memory=False,
    starved=False,
    wall_seconds=0.1,
    cpu_seconds=0.1,
    peak_bytes=1,
    log="",
)


def exited(code: int) -> int:
    """A wait status as wait(2) has it."""
    return code << 8


@pytest.mark.parametrize(
    ("ended", "status", "exit_code", "signal"),
    [
        (FINE, "success", 0, None),
        (replace(FINE, wait_status=exited(137)), "error", 137, None),
        (replace(FINE, wait_status=9), "killed", None, 9),
        (replace(FINE, wait_status=9, out_of_memory=True), "memory", None, 9),
        (replace(FINE, wait_status=None, cause="timeout"), "timeout", None, None),
        (replace(FINE, wait_status=None, cause="timeout", out_of_memory=True), "memory", None, None),
        (replace(FINE, wait_status=0, out_of_memory=True), "success", 0, None),
        (replace(FINE, wait_status=exited(1), stderr=b"Traceback\nMemoryError\n"), "memory", 1, None),
        (
            replace(FINE, wait_status=exited(1), stderr=b"numpy._core._exceptions._ArrayMemoryError: no\n"),
            "memory",
            1,
            None,
        ),
        (replace(FINE, wait_status=9, out_of_memory=True, starved=True), "sandbox_failure", None, 9),
        (replace(FINE, wait_status=None, cause="timeout", starved=True), "sandbox_failure", None, None),
        (replace(FINE, wait_status=exited(1), stderr=b"MemoryError\n", starved=True), "sandbox_failure", 1, None),
        (replace(FINE, wait_status=0, starved=True), "success", 0, None),
        (replace(FINE, wait_status=exited(1), stderr=b"MemoryError\nValueError: x\n"), "error", 1, None),
        (replace(FINE, wait_status=exited(1), stderr=b"NotAMemoryError\n"), "error", 1, None),
        (replace(FINE, stderr_truncated=True), "output_limit", None, None),
        (replace(FINE, wait_status=None, log="[E] it broke"), "sandbox_failure", None, None),
        (replace(FINE, wait_status=None, cause="start"), "sandbox_failure", None, None),
        (replace(FINE, wait_status=None, cause="aborted"), "sandbox_failure", None, None),
    ],
)
def test_each_end_has_its_status(ended: Ended, status: Status, exit_code: int | None, signal: int | None):
    result = verdict(CALL, LIMITS, ended)
    assert (result.id, result.status, result.exit_code, result.signal) == ("c", status, exit_code, signal)
    assert bool(result.reason) == (status != "success")


def test_the_reason_of_our_failure_holds_the_jails_words_but_not_the_loaders():
    log = "nsjail: libnl-3.so.200: no version information available (required by nsjail)\n[E] mount failed\n"
    reason = verdict(CALL, LIMITS, replace(FINE, wait_status=None, log=log)).reason
    assert "mount failed" in reason and "version information" not in reason


def test_reasons_name_the_limit():
    assert "2.5 seconds" in verdict(CALL, LIMITS, replace(FINE, wait_status=None, cause="timeout")).reason
    assert "64 MiB" in verdict(CALL, LIMITS, replace(FINE, wait_status=9, out_of_memory=True)).reason


@given(
    st.builds(
        Ended,
        stdout=st.binary(max_size=20),
        stderr=st.binary(max_size=20),
        stdout_truncated=st.booleans(),
        stderr_truncated=st.booleans(),
        wait_status=st.none() | st.integers(0, 255).map(exited) | st.integers(1, 64),
        cause=st.sampled_from(["", "timeout", "output_limit", "aborted", "start"]),
        out_of_memory=st.booleans(),
        starved=st.booleans(),
        wall_seconds=st.floats(0, 9),
        cpu_seconds=st.floats(0, 9),
        peak_bytes=st.integers(0, 1 << 40),
        log=st.text(max_size=20),
    )
)
def test_what_the_model_reads_has_no_clock_in_it(ended: Ended):
    result = verdict(CALL, LIMITS, ended)
    later = verdict(CALL, LIMITS, replace(ended, wall_seconds=ended.wall_seconds + 1, cpu_seconds=99.0, peak_bytes=5))
    measured = {"wall_seconds", "cpu_seconds", "peak_memory_bytes"}
    assert result.model_dump(exclude=measured) == later.model_dump(exclude=measured)
    assert (result.status == "success") <= (result.exit_code == 0 and result.signal is None)
    assert result.exit_code is None or result.signal is None
