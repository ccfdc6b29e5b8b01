"""A stored archive of four dialogues."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.storage.reader import Archive
from actors.storage.writer import ArchiveWriter
from env.tool_call import ToolResult
from policies.trajectory import Trajectory
from tests.orchestration.archive.dialogues import PROMPT, failed_call, text_span, text_trajectory


@pytest.fixture(scope="session")
def dialogues() -> list[Trajectory]:
    """One group of four: right at once, right after an error, wrong after two, wrong without a call."""
    trace = "Traceback:\n  File \"main.py\"\nNameError: name 'show' is not defined\n"
    name_error = failed_call("error", stderr=trace, exit_code=1)
    timeout = failed_call("timeout", reason="The program ran longer than its limit of 2 seconds.")
    invalid = failed_call("invalid_call", reason="unknown tool '[/x]\x1b[2J': there is one")
    fine = ToolResult(id="call-fine", status="success", stdout="42\n", exit_code=0)
    said, answer = text_span("tool", "42"), text_span("model", "The answer is 42.")
    return [
        text_trajectory(0, PROMPT, text_span("model", "Run it."), said, answer, results=[fine]),
        text_trajectory(
            1,
            PROMPT,
            text_span("model", "Show it.", surprising={0: -2.0}),
            text_span("tool", "NameError"),
            text_span("model", "Print it — now.", surprising={0: -1.5, 13: -3.0}),
            said,
            answer,
            results=[name_error, fine],
        ),
        text_trajectory(
            2,
            PROMPT,
            text_span("model", "Loop."),
            text_span("tool", "timeout"),
            text_span("model", "{bad", surprising={0: -1.0}),
            text_span("tool", "invalid"),
            text_span("model", "13", surprising={1: -4.0}),
            results=[timeout, invalid],
            correct=False,
        ),
        text_trajectory(3, PROMPT, text_span("model", "</script><b>13</b>"), correct=False),
    ]


@pytest.fixture
def archive(tmp_path: Path, dialogues: list[Trajectory]) -> Archive:
    writer = ArchiveWriter(tmp_path / "run" / "archive")
    for each in dialogues:
        writer.append(each)
    writer.close()
    return Archive(tmp_path / "run" / "archive")
