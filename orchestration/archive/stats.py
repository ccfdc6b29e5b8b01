"""Figures of an archive that its index alone can tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from actors.storage.index import IndexRow


class StageStats(BaseModel):
    """One stage, or the whole archive."""

    stage: str
    trajectories: int
    groups: int
    steps: int
    reward_mean: float
    solved_share: float
    tokens: int
    """Prompts included."""
    model_tokens: int
    response_tokens_mean: float
    turns_mean: float
    calls: int
    failed_calls: int
    failed_share_in_correct: float | None
    """Of calls in correct trajectories; None if there are no such calls."""
    failed_share_in_wrong: float | None
    finish: dict[str, int]
    statuses: dict[str, int]
    """Of calls."""
    bytes: int
    """Of the trajectories' frames on disk."""
    bytes_per_token: float | None
    """None if there is no token."""


def stage_stats(rows: Iterable[IndexRow]) -> list[StageStats]:
    """Figures of each stage, in the order in which they began, then of all together. Empty if there are no rows."""
    stages: dict[str, list[IndexRow]] = {}
    for row in rows:
        stages.setdefault(row.stage, []).append(row)
    found = [_stats(stage, some) for stage, some in stages.items()]
    if len(found) > 1:
        found.append(_stats("all", [row for some in stages.values() for row in some]))
    return found


def _stats(stage: str, rows: Sequence[IndexRow]) -> StageStats:
    size = sum(row.end - row.offset for row in rows)
    tokens = sum(row.prompt_tokens + row.response_tokens for row in rows)
    return StageStats(
        stage=stage,
        trajectories=len(rows),
        groups=len({row.group for row in rows}),
        steps=len({(row.stage, row.step) for row in rows}),
        reward_mean=sum(row.reward for row in rows) / len(rows),
        solved_share=sum(row.correct for row in rows) / len(rows),
        tokens=tokens,
        model_tokens=sum(row.model_tokens for row in rows),
        response_tokens_mean=sum(row.response_tokens for row in rows) / len(rows),
        turns_mean=sum(row.turns for row in rows) / len(rows),
        calls=sum(row.calls for row in rows),
        failed_calls=sum(row.tool_errors for row in rows),
        failed_share_in_correct=_failed_share(row for row in rows if row.correct),
        failed_share_in_wrong=_failed_share(row for row in rows if not row.correct),
        finish=dict(Counter(row.finish for row in rows)),
        statuses=dict(Counter(status for row in rows for status in row.statuses)),
        bytes=size,
        bytes_per_token=size / tokens if tokens else None,
    )


def _failed_share(rows: Iterable[IndexRow]) -> float | None:
    calls = failed = 0
    for row in rows:
        calls += row.calls
        failed += row.tool_errors
    return failed / calls if calls else None
