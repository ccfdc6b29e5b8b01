"""A selection of trajectories as one HTML page, to be read in a browser.

Invariants:
- the page needs neither a network nor a server, and a content security policy keeps it from asking for one;
- what the model and its code wrote is text, never markup: it travels as JSON, and the script only ever sets text;
- groups are whole, so that a rollout's siblings stand beside it; a page that holds a sample says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from actors.storage.index import IndexRow
from actors.storage.reader import Archive
from orchestration.archive.export import written_aside
from orchestration.archive.source import Decode
from orchestration.archive.transcript import Step, transcript, weights_names
from policies.trajectory import CallRecord, Trajectory

MOST_TOKENS = 2_000_000
"""A page with more of them is too much for a browser."""
_ASSETS = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def sample_groups(
    archive: Archive, rows: Sequence[IndexRow], *, limit: int, most_tokens: int = MOST_TOKENS
) -> list[IndexRow]:
    """The rows that a page holds: all groups of the selection, or evenly spaced ones if those are too many.

    At least one group is held, however large it is.

    Args:
        limit: trajectories at most.
        most_tokens: tokens at most.
    """
    names = list(dict.fromkeys(row.group for row in rows))
    for count in _fewer_and_fewer(len(names)):
        chosen = [names[index * len(names) // count] for index in range(count)]
        held = [row for name in chosen for row in archive.groups[name]]
        tokens = sum(row.prompt_tokens + row.response_tokens for row in held)
        if count == 1 or (len(held) <= limit and tokens <= most_tokens):
            return held
    return []


def _fewer_and_fewer(count: int) -> Iterator[int]:
    """`count`, then ever smaller numbers, down to 1."""
    while count > 0:
        yield count
        count = min(count - 1, count * 9 // 10)


def write_page(
    archive: Archive,
    rows: Sequence[IndexRow],
    decode: Decode,
    path: Path,
    *,
    conditions: Sequence[str] = (),
    limit: int = 400,
) -> str:
    """Write the page of a selection; returns a sentence on what it holds.

    Raises `ArchiveCorrupt` if one of the trajectories can't be read, `ArchiveError` if `path` is no place for a file.
    """
    held = sample_groups(archive, rows, limit=limit)
    selected = {(row.segment, row.offset) for row in rows}
    note = _note(archive, rows, held, selected, conditions)
    data = {
        "note": note,
        "conditions": list(conditions),
        "trajectories": [
            _entry(archive.read(row), decode, selected=(row.segment, row.offset) in selected) for row in held
        ],
    }
    title = f"{archive.folder.resolve().parent.name}: trajectories"
    with written_aside(path) as aside:
        aside.write_text(_html(title, data), encoding="utf-8")
    return f"{path}: {note}"


def _note(
    archive: Archive,
    rows: Sequence[IndexRow],
    held: Sequence[IndexRow],
    selected: set[tuple[int, int]],
    conditions: Sequence[str],
) -> str:
    """What the page holds, and of what."""
    where = f" where {' and '.join(conditions)}" if conditions else ""
    shown = sum((row.segment, row.offset) in selected for row in held)
    others = f", with {len(held) - shown:,} more of their groups" if len(held) > shown else ""
    groups = len({row.group for row in held})
    if shown == len(rows):
        return f"All {shown:,} trajectories{where}{others}, of {len(archive.rows):,} in the archive."
    return (
        f"A sample: {shown:,} of the {len(rows):,} trajectories{where}{others}, as {groups:,} whole groups, "
        f"evenly spaced; the archive holds {len(archive.rows):,}. `greenroom show` lists them all."
    )


def _entry(trajectory: Trajectory, decode: Decode, *, selected: bool) -> dict[str, Any]:
    verdict = trajectory.verdict
    return {
        "id": trajectory.id,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "stage": trajectory.stage,
        "step": trajectory.step,
        "problem": trajectory.problem.id,
        "family": trajectory.problem.family,
        "question": trajectory.problem.question,
        "gold": trajectory.problem.gold,
        "correct": verdict.correct,
        "verdict": verdict.reason,
        "extracted": verdict.extracted,
        "finish": trajectory.finish,
        "reward": trajectory.reward,
        "turns": trajectory.turns,
        "calls": len(trajectory.calls),
        "errors": trajectory.tool_errors,
        "tokens": trajectory.response_tokens,
        "generator": trajectory.generator,
        "selected": selected,
        "steps": [_step(step) for step in transcript(trajectory, decode)],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "turn": step.turn,
        "version": ", ".join(weights_names(step)) or None,
        "texts": [token.text for token in step.tokens],
        "ids": [token.id for token in step.tokens],
        "logprobs": [_finite(token.logprob, 4) for token in step.tokens if token.logprob is not None],
        "calls": [_call(record) for record in step.calls],
    }


def _call(record: CallRecord) -> dict[str, Any]:
    call, result = record.call, record.result
    return {
        "code": call.code,
        "input": call.input,
        "status": result.status,
        "failed": result.is_tool_error,
        "reason": result.reason,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "seconds": _finite(result.wall_seconds, 4),
        "mebibytes": round(result.peak_memory_bytes / (1 << 20), 1),
    }


def _finite(value: float, digits: int) -> float | None:
    """A number that JSON has; None for those that it has not."""
    return round(value, digits) if math.isfinite(value) else None


def _html(title: str, data: dict[str, Any]) -> str:
    # In a script element only `<` could end the data; in JSON strings it may be written as an escape.
    payload = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)} · greenroom</title>
<style>
{(_ASSETS / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p id="note"></p></header>
<main>
<nav>
<div id="controls">
<input id="filter" type="search" placeholder="id, stage, family, question, status" aria-label="Filter">
<select id="verdict" aria-label="Verdict"><option value="">right and wrong</option><option value="right">right</option>
<option value="wrong">wrong</option></select>
<select id="sort" aria-label="Sort by"></select>
</div>
<p id="count"></p>
<ol id="list"></ol>
</nav>
<article id="trajectory"></article>
<aside id="group"></aside>
</main>
<script id="data" type="application/json">{payload}</script>
<script>
{(_ASSETS / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""
