"""What is exported is what was stored, whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from orchestration.archive.export import export_jsonl, export_parquet, json_line, read_jsonl, read_parquet
from policies import tokens
from policies.trajectory import Trajectory
from tests.actors.storage.samples import random_trajectory


@pytest.fixture(scope="module")
def stored() -> list[Trajectory]:
    return [random_trajectory(serial) for serial in range(40)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, stored: list[Trajectory]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    paths = {"jsonl": folder / "all.jsonl", "parquet": folder / "all.parquet"}
    assert export_jsonl(stored, paths["jsonl"]) == export_parquet(stored, paths["parquet"]) == len(stored)
    assert sorted(path.name for path in folder.iterdir()) == ["all.jsonl", "all.parquet"]
    return paths


def test_an_export_loses_nothing(exports: dict[str, Path], stored: list[Trajectory]) -> None:
    assert list(read_jsonl(exports["jsonl"])) == stored
    assert list(read_parquet(exports["parquet"])) == stored


def as_plain(value: Any) -> Any:
    """Rows as Python's own types, whatever library they came from."""
    if isinstance(value, np.ndarray | list):
        return [as_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value


def check(rows: list[dict[str, Any]], stored: list[Trajectory]) -> None:
    """A few columns of every kind, against the trajectories themselves."""
    assert [row["id"] for row in rows] == [each.id for each in stored]
    for row, each in zip(rows, stored, strict=True):
        assert (row["reward"], row["correct"], row["gold"]) == (each.reward, each.verdict.correct, each.problem.gold)
        assert [span["ids"] for span in row["spans"]] == [tokens.unpack_ids(span.ids) for span in each.spans]
        for span, original in zip(row["spans"], each.spans, strict=True):
            if original.kind == "model":  # as float32: pandas' JSON reader rounds the last digits of float64
                assert tokens.pack_floats(span["logprobs"]) == original.logprobs
            else:
                assert span["logprobs"] is None
        assert [call["status"] for call in row["calls"]] == [record.result.status for record in each.calls]
        assert [call["signal"] for call in row["calls"]] == [None for _ in each.calls]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pandas_reads_an_export(exports: dict[str, Path], stored: list[Trajectory], kind: str) -> None:
    path = exports[kind]
    # read_json makes numbers of strings that look like some, unless it is told.
    texts: Any = {"gold": "str", "extracted": "str"}
    frame = pd.read_parquet(path) if kind == "parquet" else pd.read_json(path, lines=True, dtype=texts)
    check([as_plain(row) for row in frame.to_dict("records")], stored)
    assert frame["reward"].tolist() == [each.reward for each in stored]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_datasets_reads_an_export(
    exports: dict[str, Path], stored: list[Trajectory], kind: str, tmp_path: Path
) -> None:
    load = datasets.Dataset.from_parquet if kind == "parquet" else datasets.Dataset.from_json
    found = load(str(exports[kind]), cache_dir=str(tmp_path))
    assert isinstance(found, datasets.Dataset)
    check([dict(row) for row in found], stored)


def test_text_is_exported_where_there_is_a_tokenizer(tmp_path: Path, stored: list[Trajectory]) -> None:
    export_jsonl(stored[:1], tmp_path / "one.jsonl", lambda ids: f"{len(ids)} tokens")
    row = json.loads((tmp_path / "one.jsonl").read_text())
    assert [span["text"] for span in row["spans"]] == [f"{len(span['ids'])} tokens" for span in row["spans"]]


def test_what_json_can_t_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"rl/1/2/3 holds a number that JSON can't hold .* export to Parquet"):
        json_line({"id": "rl/1/2/3", "reward": float("-inf")})


def test_an_export_that_fails_leaves_no_file(tmp_path: Path, stored: list[Trajectory]) -> None:
    def failing():
        yield stored[0]
        raise OSError("the archive is gone")

    for export, name in ((export_jsonl, "all.jsonl"), (export_parquet, "all.parquet")):
        with pytest.raises(OSError, match="the archive is gone"):
            export(failing(), tmp_path / name)
        assert not (tmp_path / name).exists()
