"""Trajectories as JSONL and Parquet, in columns that pandas, polars and `datasets` read (docs/archive-format.md).

Invariants:
- an export loses nothing: `trajectory_from` makes the same trajectory of a row again;
- an export is there whole or not at all: it is written aside and renamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import batched
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actors.storage.disk import removed_on_failure
from actors.storage.frames import ArchiveError
from env.tool_call import ToolCall, ToolResult
from orchestration.archive.source import Decode
from orchestration.archive.transcript import known_ids
from policies import tokens
from policies.trajectory import CallRecord, Problem, Span, Trajectory, Verdict, WeightsVersion

ROWS_PER_GROUP = 1024
"""Trajectories of a Parquet row group."""

_LIMITS = pa.struct(
    [
        ("wall_seconds", pa.float64()),
        ("memory_bytes", pa.int64()),
        ("processes", pa.int64()),
        ("output_bytes", pa.int64()),
        ("scratch_bytes", pa.int64()),
    ]
)
_CALL = pa.struct(
    [
        ("turn", pa.int32()),
        ("id", pa.string()),
        ("tool", pa.string()),
        ("code", pa.string()),
        ("input", pa.string()),
        ("session", pa.string()),
        ("limits", _LIMITS),
        ("status", pa.string()),
        ("stdout", pa.string()),
        ("stderr", pa.string()),
        ("exit_code", pa.int32()),
        ("signal", pa.int32()),
        ("wall_seconds", pa.float64()),
        ("cpu_seconds", pa.float64()),
        ("peak_memory_bytes", pa.int64()),
        ("stdout_truncated", pa.bool_()),
        ("stderr_truncated", pa.bool_()),
        ("reason", pa.string()),
        ("restarted", pa.bool_()),
        ("replayed", pa.int32()),
        ("session_ended", pa.bool_()),
    ]
)
_SPAN = pa.struct(
    [
        ("kind", pa.string()),
        ("text", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("lineage", pa.int32()),
        ("weights_step", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int32()),
        ("stage", pa.string()),
        ("step", pa.int32()),
        ("problem", pa.string()),
        ("family", pa.string()),
        ("question", pa.string()),
        ("gold", pa.string()),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
        ("extracted", pa.string()),
        ("verdict", pa.string()),
        ("finish", pa.string()),
        ("turns", pa.int32()),
        ("answer_tags", pa.int32()),
        ("model_tokens", pa.int64()),
        ("response_tokens", pa.int64()),
        ("tool_errors", pa.int64()),
        ("generator", pa.string()),
        ("waited_seconds", pa.float64()),
        ("queued", pa.bool_()),
        ("spans", pa.list_(_SPAN)),
        ("calls", pa.list_(_CALL)),
    ]
)
"""The columns. `text` is null without a tokenizer; `logprobs`, `lineage` and `weights_step` but for model spans."""

_RESULT_FIELDS = [name for name in ToolResult.model_fields if name != "id"]
_CALL_FIELDS = [name for name in ToolCall.model_fields if name != "limits"]


def columns(trajectory: Trajectory, decode: Decode | None = None) -> dict[str, Any]:
    """A trajectory as a row of `SCHEMA`, in plain values. Raises `ArchiveError` if its tokens are not known."""
    problem, verdict = trajectory.problem, trajectory.verdict
    return {
        "id": trajectory.id,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "stage": trajectory.stage,
        "step": trajectory.step,
        "problem": problem.id,
        "family": problem.family,
        "question": problem.question,
        "gold": problem.gold,
        "reward": trajectory.reward,
        "correct": verdict.correct,
        "extracted": verdict.extracted,
        "verdict": verdict.reason,
        "finish": trajectory.finish,
        "turns": trajectory.turns,
        "answer_tags": trajectory.answer_tags,
        "model_tokens": trajectory.model_tokens,
        "response_tokens": trajectory.response_tokens,
        "tool_errors": trajectory.tool_errors,
        "generator": trajectory.generator,
        "waited_seconds": trajectory.waited_seconds,
        "queued": trajectory.queued,
        "spans": [_span(span, decode) for span in trajectory.spans],
        "calls": [_call(record) for record in trajectory.calls],
    }


def _span(span: Span, decode: Decode | None) -> dict[str, Any]:
    ids = known_ids(span)
    return {
        "kind": span.kind,
        "text": None if decode is None else decode(ids),
        "ids": ids,
        "logprobs": tokens.unpack_floats(span.logprobs).tolist() if span.kind == "model" else None,
        "lineage": None if span.version is None else span.version.lineage,
        "weights_step": None if span.version is None else span.version.step,
    }


def _call(record: CallRecord) -> dict[str, Any]:
    result = record.result.__dict__
    asked = {name: record.call.__dict__[name] for name in _CALL_FIELDS}
    answered = {name: result[name] for name in _RESULT_FIELDS}
    return {"turn": record.turn, **asked, "limits": dict(record.call.limits.__dict__), **answered}


def trajectory_from(row: dict[str, Any]) -> Trajectory:
    """The inverse of `columns`: a row of an export, as plain values, as the trajectory that it was.

    Raises `pydantic.ValidationError` if it is not one.
    """
    spans = [
        Span(
            kind=span["kind"],
            ids=tokens.pack_ids(span["ids"]),
            logprobs=tokens.pack_floats(span["logprobs"]) if span["logprobs"] is not None else b"",
            version=None if span["lineage"] is None else WeightsVersion(span["lineage"], span["weights_step"]),
        )
        for span in row["spans"]
    ]
    calls = [
        CallRecord(
            turn=call["turn"],
            call=ToolCall(**{name: call[name] for name in _CALL_FIELDS}, limits=call["limits"]),
            result=ToolResult(id=call["id"], **{name: call[name] for name in _RESULT_FIELDS}),
        )
        for call in row["calls"]
    ]
    same = ("id", "group", "sample", "stage", "step", "reward", "finish", "turns", "answer_tags", "generator")
    return Trajectory(
        **{name: row[name] for name in (*same, "waited_seconds", "queued")},
        problem=Problem(id=row["problem"], question=row["question"], gold=row["gold"], family=row["family"]),
        verdict=Verdict(correct=row["correct"], extracted=row["extracted"], reason=row["verdict"]),
        spans=tuple(spans),
        calls=tuple(calls),
    )


def export_jsonl(trajectories: Iterable[Trajectory], path: Path, decode: Decode | None = None) -> int:
    """Write one JSON object a line; returns how many.

    Raises `ArchiveError` for a log-probability that JSON has no number for.
    """
    count = 0
    with written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json_line(columns(trajectory, decode)))
            count += 1
    return count


def json_line(row: dict[str, Any]) -> str:
    """A row as a line of JSONL."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ArchiveError(f"{row['id']} holds a number that JSON can't hold ({error}); export to Parquet") from error


def export_parquet(trajectories: Iterable[Trajectory], path: Path, decode: Decode | None = None) -> int:
    """Write a Parquet file, zstd-compressed; returns the number of rows.

    Raises `ArchiveError` for a number that is too large for its column.
    """
    count = 0
    with written_aside(path) as aside, pq.ParquetWriter(aside, SCHEMA, compression="zstd") as writer:
        for some in batched(trajectories, ROWS_PER_GROUP):
            rows = [columns(trajectory, decode) for trajectory in some]
            try:
                batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            except (pa.ArrowInvalid, OverflowError) as error:
                raise ArchiveError(
                    f"one of {rows[0]['id']} to {rows[-1]['id']} holds a number that its column can't hold: {error}"
                ) from error
            writer.write_batch(batch)
            count += len(rows)
    return count


def read_parquet(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a Parquet export, in order."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            for row in batch.to_pylist():
                yield trajectory_from(row)


def read_jsonl(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a JSONL export, in order."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield trajectory_from(json.loads(line))


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` in the end; nothing is left of it if that fails.

    Raises `ArchiveError` if there is something else than a file: a folder, or a device, whose place it would take.
    """
    if path.exists() and not path.is_file():
        raise ArchiveError(f"{path} is there already and is not a file; give the name of one")
    aside = path.with_name(path.name + ".partial")
    with removed_on_failure(aside):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        aside.replace(path)


EXPORTS = {".jsonl": export_jsonl, ".parquet": export_parquet}
"""By the ending of the file's name."""
