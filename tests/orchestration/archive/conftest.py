"""A stored archive whose tokens are bytes of text, so that a test can say what a transcript reads like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.storage.reader import Archive
from actors.storage.writer import ArchiveWriter
from env.tool_call import ToolCall, ToolResult
from policies import tokens
from policies.trajectory import CallRecord, Problem, Span, Trajectory, Verdict, WeightsVersion


def decode(ids: Sequence[int]) -> str:
    """Tokens are bytes of UTF-8."""
    return bytes(ids).decode("utf-8", errors="replace")


def text_span(kind: str, text: str, logprob: float = -0.1, surprising: dict[int, float] | None = None) -> Span:
    """A span whose tokens are the bytes of a text.

    Args:
        logprob: of each token of a model span.
        surprising: position -> another log-probability.
    """
    data = text.encode()
    logprobs = [(surprising or {}).get(position, logprob) for position in range(len(data))]
    return Span(
        kind=kind,  # type: ignore[arg-type]
        ids=tokens.pack_ids(list(data)),
        logprobs=tokens.pack_floats(logprobs) if kind == "model" else b"",
        version=WeightsVersion(0, 3) if kind == "model" else None,
    )


def text_trajectory(sample: int, *spans: Span, results: Sequence[ToolResult] = (), **fields: object) -> Trajectory:
    """A rollout of `rl/0/0`; result N is that of a call in turn N."""
    name = f"rl/0/0/{sample}"
    calls = [
        CallRecord(turn=turn, call=ToolCall(id=result.id, code=f"print({sample})  # call {turn}"), result=result)
        for turn, result in enumerate(results)
    ]
    correct = bool(fields.pop("correct", True))
    verdict = Verdict(correct=correct, extracted="42" if correct else "13", reason="right" if correct else "wrong")
    values = {
        "id": name,
        "group": "rl/0/0",
        "sample": sample,
        "stage": "rl",
        "step": 0,
        "problem": Problem(id="sums/1", question="What is 6 times 7?", gold="42", family="[/sums]"),
        "spans": spans,
        "calls": tuple(calls),
        "turns": sum(span.kind == "model" for span in spans),
        "answer_tags": 1,
        "finish": "answered",
        "verdict": verdict,
        "reward": float(correct),
        "generator": "generator-0",
    }
    return Trajectory.model_validate(values | fields)


def failed(status: str, **fields: object) -> ToolResult:
    return ToolResult.model_validate({"id": f"call-{status}", "status": status, **fields})


PROMPT = text_span("prompt", "What is 6 times 7?")


@pytest.fixture(scope="session")
def dialogues() -> list[Trajectory]:
    """One group of four: right at once, right after an error, wrong after two, wrong without a call."""
    trace = "Traceback:\n  File \"main.py\"\nNameError: name 'show' is not defined\n"
    name_error = failed("error", stderr=trace, exit_code=1)
    timeout = failed("timeout", reason="The program ran longer than its limit of 2 seconds.")
    invalid = failed("invalid_call", reason="unknown tool '[/x]\x1b[2J': there is one")
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
