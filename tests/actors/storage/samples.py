"""Trajectories that differ in everything that an archive stores."""

from __future__ import annotations

import random

import numpy as np

from env.tool_call import ToolCall, ToolResult
from policies import tokens
from policies.trajectory import CallRecord, Problem, Span, Trajectory, Verdict, WeightsVersion

STATUSES = ("success", "error", "timeout", "invalid_call")


def random_trajectory(serial: int, *, stage: str = "rl", group_size: int = 4) -> Trajectory:
    """A trajectory of one to three turns, from a stream of its own."""
    draw = random.Random(serial)
    group, sample = divmod(serial, group_size)
    name = f"{stage}/{group // 4}/{group % 4}"
    spans = [Span(kind="prompt", ids=_ids(draw, 5, 20))]
    calls = []
    turns = draw.randint(1, 3)
    for turn in range(turns):
        ids = _ids(draw, 3, 30)
        logprobs = tokens.pack_floats(-np.abs([draw.gauss(0, 1) for _ in range(tokens.count(ids))]))
        spans.append(Span(kind="model", ids=ids, logprobs=logprobs, version=WeightsVersion(0, group // 4)))
        if turn + 1 < turns:
            call_id, status = f"{name}/{sample}/{turn}/0", draw.choice(STATUSES)
            failed = f"Traceback\n{draw.choice(['NameError', 'ZeroDivisionError'])}: no\n" if status == "error" else ""
            result = ToolResult(id=call_id, status=status, stdout="" if failed else "1\n", stderr=failed, exit_code=0)
            calls.append(CallRecord(turn=turn, call=ToolCall(id=call_id, code=f"print({serial})"), result=result))
            spans.append(Span(kind="tool", ids=_ids(draw, 2, 10)))
    correct = draw.random() < 0.5
    return Trajectory(
        id=f"{name}/{sample}",
        group=name,
        sample=sample,
        stage=stage,
        step=group // 4,
        problem=Problem(id=f"arithmetic/{group}", question=f"{group} + {group}?", gold=str(2 * group), family="sums"),
        spans=tuple(spans),
        calls=tuple(calls),
        turns=turns,
        answer_tags=1,
        finish="answered",
        verdict=Verdict(correct=correct, extracted="1", reason="right" if correct else "wrong"),
        reward=float(correct),
        generator=f"generator-{serial % 2}",
        waited_seconds=draw.random(),
        queued=serial % 3 == 0,
    )


def _ids(draw: random.Random, least: int, most: int) -> bytes:
    return tokens.pack_ids([draw.randrange(286) for _ in range(draw.randint(least, most))])
