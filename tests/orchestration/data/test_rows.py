"""Whatever is wrong with a file is said with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestration.data.problems import load_problems
from orchestration.data.rows import DataError, read_rows
from policies.data_options import DatasetOptions

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "id": f"q{n}"} for n in range(5)]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def complaint(path: Path, name: str = "plain") -> str:
    with pytest.raises(DataError) as error:
        load_problems(DatasetOptions(name=name, path=str(path)))
    return str(error.value)


def test_all_forms_hold_the_same_rows(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(
        "question,answer,id\n" + "".join(f"{r['question']},{r['answer']},{r['id']}\n" for r in ROWS)
    )
    for path in (lines, tmp_path / "a.parquet", tmp_path / "a.csv"):
        assert [located.row for located in read_rows(str(path))] == ROWS


def test_a_folder_is_read_by_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "train-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[:2]), folder / "test-00000-of-00001.parquet")
    assert [located.row for located in read_rows(str(folder))] == ROWS
    assert len(list(read_rows(str(folder), split="test"))) == 2
    with pytest.raises(DataError, match="validation"):
        list(read_rows(str(folder), split="validation"))


def test_a_wrong_column_is_named_with_the_line_and_the_columns_there_are(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*ROWS[:2], {"questoin": "?", "answer": "1"}])
    told = complaint(path)
    assert f"{path} line 3" in told and "'question'" in told and "did you mean 'questoin'" in told


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    assert "is empty" in complaint(write_lines(tmp_path / "none.jsonl", []))


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    path.write_text(path.read_text()[:-20])
    told = complaint(path)
    assert f"{path} line 5" in told and "cut off" in told


def test_a_damaged_line_in_the_middle_is_not_taken_for_a_truncated_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "?", "answer": "1"}\n{"question": \n{"question": "!", "answer": "2"}\n')
    told = complaint(path)
    assert f"{path} line 2" in told and "cut off" not in told


def test_a_duplicate_id_is_named_with_both_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*ROWS, ROWS[1] | {"question": "another"}])
    told = complaint(path)
    assert f"{path} line 6" in told and f"{path} line 2" in told and "q1" in told


def test_an_answer_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0], {"question": "?", "answer": None}])
    assert f"{path} line 2" in complaint(path)


def test_a_parquet_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-9])
    assert str(path) in complaint(path) and "Parquet" in complaint(path)


def test_a_csv_line_with_too_few_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer\nwhat?,1\nwhat\n")
    assert f"{path} line 3" in complaint(path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no file at" in complaint(tmp_path / "nothing.jsonl")


def test_an_unknown_set_lists_those_there_are(tmp_path: Path) -> None:
    told = complaint(write_lines(tmp_path / "a.jsonl", ROWS), name="gsm9k")
    assert "gsm9k" in told and "math500" in told


def test_a_line_with_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*ROWS[:2], ROWS[2] | {"question": "\ud83d"}])
    assert f"{path} line 3 is not a JSON object" in (told := complaint(path)) and "surrogates not allowed" in told
    write_lines(path, [ROWS[0] | {"question": "How many 😀?"}])
    assert [located.row["question"] for located in read_rows(str(path))] == ["How many 😀?"]
