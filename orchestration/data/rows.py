"""Rows of a data set, each with where it stands: JSONL, Parquet and CSV files, folders and hub ids.

Invariant: whatever is wrong with a file is a `DataError` that names the file, the line or row, and what would be right.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from policies.problem_sets import RowUnusable

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


class DataError(ValueError):
    """Data that can't be used; the text says where and why."""


class Located(NamedTuple):
    """A row and where it stands, such as `train.jsonl line 7`."""

    where: str
    row: dict[str, Any]


def read_rows(source: str, *, configs: Sequence[str] = (), split: str = "train") -> Iterator[Located]:
    """The rows of a file, of a folder, or of an id on the Hugging Face hub.

    Args:
        configs: configurations of a hub id that are read one after another; the default one without.
        split: of a folder or a hub id.

    Raises `DataError`.
    """
    path = Path(source)
    if path.is_file():
        yield from _nonempty(_of_file(path), str(path))
    elif path.exists() or may_be_on_the_hub(source):
        for config in configs if configs and not path.exists() else (None,):
            yield from _nonempty(_of_library(source, config, split), source)
    else:
        raise DataError(f"no file at {source}; give a .jsonl, .parquet or .csv file, a folder, or an id such as me/set")


def may_be_on_the_hub(source: str) -> bool:
    """Whether a source that is nowhere on this machine may be an id on the Hugging Face hub."""
    path = Path(source)
    looks_like_one = source.count("/") == 1 and not source.startswith((".", "/")) and path.suffix not in SUFFIXES
    return looks_like_one and not path.exists()


def check_columns(located: Located, columns: Sequence[str]) -> None:
    """Raise `DataError` if a row lacks any of `columns`."""
    missing = [column for column in columns if column not in located.row]
    if not missing:
        return
    there = [str(column) for column in located.row]
    near = [
        f"{column!r} (did you mean {match[0]!r}?)" if match else repr(column)
        for column in missing
        if (match := difflib.get_close_matches(column, there, 1)) is not None
    ]
    raise DataError(f"{located.where}: no column {', '.join(near)}; the columns are {', '.join(there) or 'none'}")


@contextmanager
def mapping(located: Located) -> Iterator[None]:
    """Around what makes something of a row: says where the row stands that it can't use. Raises `DataError`."""
    try:
        yield
    except RowUnusable as error:
        raise DataError(f"{located.where}: {error}") from error
    except KeyError as error:
        raise DataError(
            f"{located.where}: the mapping reads {error}, which this row lacks; name it in the set's `columns`, or "
            "read it with `row.get`"
        ) from error


def _nonempty(rows: Iterator[Located], source: str) -> Iterator[Located]:
    empty = True
    for located in rows:
        empty = False
        yield located
    if empty:
        raise DataError(f"{source} is empty: it holds no row")


def _of_file(path: Path) -> Iterator[Located]:
    match path.suffix:
        case ".jsonl" | ".json":
            yield from _of_jsonl(path)
        case ".parquet":
            yield from _of_parquet(path)
        case ".csv":
            yield from _of_csv(path)
        case other:
            raise DataError(f"{path} ends in {other or 'no suffix'}; data files end in {', '.join(SUFFIXES)}")


def _of_jsonl(path: Path) -> Iterator[Located]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                row = json.loads(line)
                if b"\\u" in line:  # an escape may be half of a surrogate pair: nothing takes that for text
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                cut = "; the file ends in the middle of it, so it may have been cut off" if line[-1:] != b"\n" else ""
                raise DataError(f"{where} is not a JSON object: {error}{cut}") from error
            if not isinstance(row, dict):
                raise DataError(f"{where} holds a JSON {type(row).__name__}; each line must be one object")
            yield Located(where, row)


def _of_parquet(path: Path) -> Iterator[Located]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield Located(f"{path} row {number}", row)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet after row {number}: {error}") from error


def _of_csv(path: Path) -> Iterator[Located]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="", strict=True)
        try:
            for row in reader:
                where = f"{path} line {reader.line_num}"
                if "" in row or None in row.values():
                    raise DataError(f"{where} has {'more' if '' in row else 'fewer'} fields than the header")
                yield Located(where, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} line {reader.line_num} is not CSV: {error}") from error


def _of_library(source: str, config: str | None, split: str) -> Iterator[Located]:
    """By `datasets`, which finds files in a folder, or fetches an id from the hub."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        rows = load_dataset(source, config, split=split)
    except (DatasetNotFoundError, ConnectionError, FileNotFoundError) as error:
        raise DataError(
            f"{source} is neither a file or folder nor an id that the Hugging Face hub lets you read: {error}"
        ) from error
    except ValueError as error:  # an unknown split or configuration; the library's text lists those there are
        raise DataError(f"{source}: {error}") from error
    name = source if config is None else f"{source} ({config})"
    for number, row in enumerate(rows, 1):
        yield Located(f"{name} row {number}", dict(row))
