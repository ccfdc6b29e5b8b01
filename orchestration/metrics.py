"""What a run measures, line by line, and small statistics over it.

Invariants:
- `metrics.jsonl` holds one flat JSON object a line; each line is flushed when it is written, so a run that dies
  loses at most the line it was writing (readers skip a torn last line, writers cut it off before they append);
- each line has `kind`, `stage`, `step` and `seconds` (since the run's start; it goes on where it was after a resume);
- numbers that JSON cannot hold (NaN, infinities) are written as null: not known.
"""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

from policies.run_progress import RunProgress

Kind = Literal["fine_tune", "step", "evaluation", "event"]
Figure = float | int | bool | str | None
Record = dict[str, Any]
"""One line of metrics.jsonl: the four fixed fields and flat figures."""

METRICS_FILE = "metrics.jsonl"


class MetricsUnreadable(ValueError):
    """A metrics file with a line that is not a flat JSON object, other than a torn last one."""


class MetricsSink(Protocol):
    """Where figures go."""

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        """Record `figures` of `step` in `stage`; a figure is a number, text, or None for not known.

        Raises `ValueError` for a figure that is neither, and for an unknown kind.
        """
        ...

    def rewind(self, progress: RunProgress) -> None:
        """The run has gone back: lines that don't count in `progress` did not happen. Those that can't be taken back
        may stay, since they are written again."""
        ...

    def close(self) -> None:
        """Write out what is held back and release the file; closing twice is allowed."""
        ...


class JsonlMetrics:
    """The sink behind `metrics.jsonl`. Usable as a context manager.

    Opening a file that exists appends to it: a torn last line is cut off, and `seconds` goes on from the last line's.
    Writing raises `OSError` where the file system does not take it, and if the file is not where it was opened.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        offset = 0.0
        if path.exists():
            _cut_torn_line(path)
            offset = max((float(r.get("seconds") or 0.0) for r in read_metrics(path)), default=0.0)
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._now = now
        self._start = now() - offset

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"unknown kind of metrics {kind!r}; use one of {', '.join(get_args(Kind))}")
        record: Record = {"kind": kind, "stage": stage, "step": step, "seconds": round(self._now() - self._start, 3)}
        record.update({name: plain_figure(name, value) for name, value in figures.items()})
        if not self._path.exists():  # else all goes on, to files that nobody finds
            raise FileNotFoundError(
                errno.ENOENT, "its files were removed or moved while it was in use", str(self._path)
            )
        self._file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def rewind(self, progress: RunProgress) -> None:
        self._file.close()
        cut_metrics(self._path, progress)
        self._file = self._path.open("a", encoding="utf-8")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TensorBoardMetrics:
    """A sink for TensorBoard: each numeric figure becomes the scalar `kind/figure`.

    Steps go on from stage to stage, an evaluation stands where its stage ends. Lines are written by whoever calls, not
    by a thread as TensorBoard's own writer does: what the file system refuses is raised here.

    Args:
        steps: of each stage, in the order of the run.
    """

    def __init__(self, folder: Path, steps: Mapping[str, int] | None = None) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("ab")
        self._records = RecordWriter(self._file)
        self._record(file_version="brain.Event:2")
        self._steps = dict(steps or {})

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore  (protobuf makes it at runtime)
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        summary = Summary()
        for name, value in figures.items():
            figure = plain_figure(name, value)
            if isinstance(figure, int | float):
                summary.MergeFrom(scalar_pb(f"{kind}/{name}", float(figure)))
        self._record(step=self._of_the_run(kind, stage, step), summary=summary)

    def _record(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore  (as above)

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def _of_the_run(self, kind: Kind, stage: str, step: int) -> int:
        """The step within the run; that of the stage if the stage is not known."""
        if stage not in self._steps:
            return step
        stages = list(self._steps)
        before = sum(self._steps[name] for name in stages[: stages.index(stage)])
        return before + (self._steps[stage] if kind == "evaluation" else step)

    def rewind(self, progress: RunProgress) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class AllMetrics:
    """Sends each line to several sinks, in order."""

    def __init__(self, *sinks: MetricsSink) -> None:
        self._sinks = sinks

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        for sink in self._sinks:
            sink.write(kind, stage, step, **figures)

    def rewind(self, progress: RunProgress) -> None:
        for sink in self._sinks:
            sink.rewind(progress)

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, whatever one of them raises
            for sink in reversed(self._sinks):
                closing.callback(sink.close)


def cut_metrics(path: Path, progress: RunProgress) -> None:
    """Take the lines out of a metrics file that don't count in `progress`."""
    kept = [each for each in read_metrics(path) if progress.counts(each["kind"], each["stage"], each["step"])]
    aside = path.with_name(path.name + ".partial")
    aside.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in kept), encoding="utf-8")
    aside.replace(path)


def plain_figure(name: str, value: Any) -> Figure:
    """`value` as JSON holds it: numpy's numbers become Python's, non-finite ones None.

    Raises `ValueError` for anything but a number, text or None.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if type(value).__name__ == "bool_":  # numpy's, which is not registered as a number
        return bool(value)
    raise ValueError(
        f"metric {name!r} is a {type(value).__name__}; metrics are flat: give a number, text or None (tensors: .item())"
    )


def read_metrics(path: Path) -> list[Record]:
    """All whole lines of a metrics file, in order; none if it does not exist.

    Raises `MetricsUnreadable` if a line other than the last is not a JSON object with a `kind`.
    """
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the writer died in the middle
                break
            raise MetricsUnreadable(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(record, dict) or "kind" not in record:
            raise MetricsUnreadable(f"{path}, line {number} is not an object with a `kind`")
        records.append(record)
    return records


def of_kind(records: Iterable[Record], kind: Kind) -> list[Record]:
    """The records of one kind, in order."""
    return [record for record in records if record["kind"] == kind]


def figure(record: Mapping[str, Any], name: str) -> float | None:
    """The figure `name` as a finite float; None if it is absent, null or not a number."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def column(records: Sequence[Mapping[str, Any]], name: str) -> list[float | None]:
    """`name` of each record, None where it is not known."""
    return [figure(record, name) for record in records]


def names_with_prefix(records: Iterable[Mapping[str, Any]], prefix: str) -> list[str]:
    """Names of figures that begin with `prefix` and have a number in some record, sorted."""
    return sorted({name for r in records for name in r if name.startswith(prefix) and figure(r, name) is not None})


class Interval(NamedTuple):
    """A confidence interval, both ends included."""

    low: float
    high: float


def wilson_interval(successes: float, n: int, z: float = 1.959963984540054) -> Interval:
    """The Wilson score interval of a proportion; `z` is the normal quantile, by default for 95%.

    Unlike the plain normal interval it stays within 0 and 1 and is of use for shares near them (E. B. Wilson, 1927,
    "Probable inference, the law of succession, and statistical inference"). Nothing observed gives (0, 1).
    Raises `ValueError` unless 0 <= successes <= n and z > 0.
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: successes must lie between 0 and n")
    if z <= 0:
        raise ValueError(f"z is {z}; give a positive normal quantile such as 1.96")
    if n == 0:
        return Interval(0.0, 1.0)
    share = successes / n
    shrink = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is exactly 0 or 1; rounding must not leave it beside them.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low, high)


STAGE_FIELDS = (
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "problems",
    "mean_response_tokens",
    "mean_tool_calls",
    "tool_error_share_in_correct",
)
"""Figures of one row of `summary.json`'s `stages`, beside `name`."""


def stages_from_evaluations(records: Iterable[Record]) -> list[Record]:
    """Rows for `summary.json`'s `stages`: the last evaluation of each state, in order of first sight."""
    rows: dict[str, Record] = {}
    for record in of_kind(records, "evaluation"):
        name = str(record.get("stage", ""))
        rows[name] = {"name": name, **{field: record.get(field) for field in STAGE_FIELDS}}
    return list(rows.values())


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last newline."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
