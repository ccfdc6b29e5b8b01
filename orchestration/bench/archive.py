"""How fast the archive takes in and gives back trajectories, and in how many bytes, beside JSONL and Parquet.

All three sides store the same trajectories and give them back as validated records that equal what was stored. The
archive and JSONL hand each trajectory to the operating system by itself, so that a crash loses none; Parquet can't be
appended to: it is written in groups of rows, and says nothing until it is closed. The sides take turns in short rounds,
so that a slow minute of the machine hits them all.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel

from actors.storage.frames import ArchiveError
from actors.storage.reader import Archive, read_archive
from actors.storage.writer import ArchiveWriter
from env.tool_call import ToolCall, ToolResult
from orchestration.archive.export import columns, export_parquet, json_line, read_jsonl, read_parquet
from orchestration.scratch_folder import scratch_folder
from policies import tokens
from policies.trajectory import CallRecord, Problem, Span, Trajectory, Verdict, WeightsVersion

VOCABULARY = 50_000


class FormatFigures(BaseModel):
    """One way to store trajectories."""

    append_per_s: float
    """Trajectories a second."""
    append_tokens_per_s: float
    scan_per_s: float
    """Trajectories a second, as validated records."""
    scan_tokens_per_s: float
    bytes: int
    """On disk, indices included."""
    bytes_per_token: float


class ArchiveFigures(BaseModel):
    """The three side by side."""

    archive: FormatFigures
    jsonl: FormatFigures
    parquet: FormatFigures
    index_rows_per_s: float
    """Rows a second when an archive is opened by its index."""
    trajectories: int
    tokens: int
    """Of one round, prompts included."""
    source: str
    rounds: int


class _Side(NamedTuple):
    write: Callable[[Sequence[Trajectory], Path], object]
    read: Callable[[Path], Iterator[Trajectory]]


def bench_archive(*, trajectories: int = 1000, rounds: int = 3, archive: Path | None = None) -> ArchiveFigures:
    """Measure all sides.

    Args:
        trajectories: how many are stored and read in each round.
        archive: where they come from; None: they are made up (`made_up_trajectory`).

    Raises `ArchiveError` if `archive` holds nothing, `ArchiveCorrupt` if it is damaged, `RuntimeError` if a side gives
    back something else than it took.
    """
    source = map(made_up_trajectory, range(trajectories)) if archive is None else read_archive(archive)
    stored = list(islice(source, trajectories))
    if not stored:
        raise ArchiveError("there is nothing to store; name an archive that holds trajectories")
    sides = {
        "archive": _Side(_write_archive, read_archive),
        "jsonl": _Side(_write_jsonl, read_jsonl),
        "parquet": _Side(export_parquet, read_parquet),
    }
    wrote, read, size = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0)
    opened = 0.0
    with scratch_folder("greenroom-bench-") as folder:
        for number in range(rounds):
            for name, side in sides.items():
                path = folder / f"{name}-{number}"
                gc.collect()
                wrote[name] += _seconds(lambda side=side, path=path: side.write(stored, path))
                found: list[Trajectory] = []
                gc.collect()
                read[name] += _seconds(lambda side=side, path=path, found=found: found.extend(side.read(path)))
                if found != stored:
                    raise RuntimeError(f"{name} gave back something else than it took")
                size[name] = _bytes(path)
            opened += _seconds(lambda number=number: Archive(folder / f"archive-{number}"))
    count = sum(tokens.count(span.ids) for each in stored for span in each.spans)

    def figures(name: str) -> FormatFigures:
        return FormatFigures(
            append_per_s=rounds * len(stored) / wrote[name],
            append_tokens_per_s=rounds * count / wrote[name],
            scan_per_s=rounds * len(stored) / read[name],
            scan_tokens_per_s=rounds * count / read[name],
            bytes=size[name],
            bytes_per_token=size[name] / count,
        )

    return ArchiveFigures(
        archive=figures("archive"),
        jsonl=figures("jsonl"),
        parquet=figures("parquet"),
        index_rows_per_s=rounds * len(stored) / opened,
        trajectories=len(stored),
        tokens=count,
        source="made up" if archive is None else str(archive),
        rounds=rounds,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _bytes(path: Path) -> int:
    """Size of a file, or of a folder's files."""
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


def _write_archive(trajectories: Sequence[Trajectory], path: Path) -> None:
    writer = ArchiveWriter(path)
    try:
        for each in trajectories:
            writer.append(each)
    finally:
        writer.close()


def _write_jsonl(trajectories: Sequence[Trajectory], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for each in trajectories:
            file.write(json_line(columns(each)))
            file.flush()


def made_up_trajectory(serial: int) -> Trajectory:
    """A trajectory of the size that small models make: a prompt of 150 tokens, three turns of 300, two calls.

    Tokens follow Zipf's law, as those of texts do; most log-probabilities are near zero.
    """
    draw = np.random.default_rng(serial)

    def ids(count: int) -> bytes:
        return tokens.pack_ids(np.minimum(draw.zipf(1.3, count), VOCABULARY) - 1)

    def call(turn: int) -> CallRecord:
        name = f"made-up/0/{serial}/0/{turn}/0"
        code = "\n".join(f"x{line} = {random.Random(serial + line).randrange(10**6)}" for line in range(12))
        result = ToolResult(id=name, status="success", stdout=f"{serial}\n", exit_code=0, wall_seconds=0.02)
        return CallRecord(turn=turn, call=ToolCall(id=name, code=code), result=result)

    spans = [Span(kind="prompt", ids=ids(150))]
    for turn in range(3):
        logprobs = tokens.pack_floats(-(draw.exponential(1.0, 300) ** 3) / 20)
        spans.append(Span(kind="model", ids=ids(300), logprobs=logprobs, version=WeightsVersion(0, serial // 256)))
        if turn < 2:
            spans.append(Span(kind="tool", ids=ids(40)))
    correct = bool(draw.random() < 0.5)
    return Trajectory(
        id=f"made-up/0/{serial}/0",
        group=f"made-up/0/{serial}",
        sample=0,
        stage="made-up",
        step=0,
        problem=Problem(
            id=f"made-up/{serial}", question=f"Question {serial}?" * 10, gold=str(serial), family="made-up"
        ),
        spans=tuple(spans),
        calls=(call(0), call(1)),
        turns=3,
        answer_tags=1,
        finish="answered",
        verdict=Verdict(correct=correct, extracted=str(serial), reason="right" if correct else "wrong"),
        reward=float(correct),
        generator="generator-0",
    )
