"""Rollouts whose tokens are bytes of text, so that a test can say what a transcript reads like."""

from __future__ import annotations

from collections.abc import Sequence

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


def failed_call(status: str, **fields: object) -> ToolResult:
    return ToolResult.model_validate({"id": f"call-{status}", "status": status, **fields})


PROMPT = text_span("prompt", "What is 6 times 7?")
