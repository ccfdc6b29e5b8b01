"""Benchmarks load from files of their shapes, and refuse clearly what they can't do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestration.data.rows import DataError
from orchestration.evaluation.answers import Part, Wanted
from orchestration.evaluation.benchmarks import Settings, load_benchmark
from orchestration.recipe import RecipeError


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


FUNCTION = {"name": "f", "description": "", "parameters": {"type": "dict", "properties": {"a": {"type": "integer"}}}}


@pytest.fixture
def gorilla(tmp_path: Path) -> Path:
    question = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "f of 1?"}]]
    rows = [{"id": f"simple_{n}", "question": question, "function": [FUNCTION]} for n in range(3)]
    write(tmp_path / "BFCL_v3_simple.json", rows)
    truth = [{"id": f"simple_{n}", "ground_truth": [{"f": {"a": [1]}}]} for n in range(3)]
    write(tmp_path / "possible_answer" / "BFCL_v3_simple.json", truth)
    write(tmp_path / "BFCL_v3_irrelevance.json", [rows[0] | {"id": "irrelevance_0"}])
    return tmp_path


def test_mathematics_is_sampled_as_in_the_paper(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": 1, "problem": "P?", "answer": "042"}])
    benchmark = load_benchmark("aime24", str(tmp_path / "a.jsonl"), None)
    assert benchmark.settings == Settings(samples=16, temperature=0.6, max_turns=30, max_tokens=30_000)
    assert benchmark.problems[0].gold == "42" and benchmark.style == "reasoning"


def test_bfcl_pairs_questions_with_allowed_calls(gorilla: Path) -> None:
    benchmark = load_benchmark("bfcl", str(gorilla), 2)
    assert [problem.id for problem in benchmark.problems] == ["bfcl/simple_0", "bfcl/simple_1", "bfcl/irrelevance_0"]
    assert benchmark.settings.temperature == 0 and "Be brief.\n\nf of 1?" in benchmark.problems[0].question
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert benchmark.graders["bfcl/simple_0"](call).correct
    assert not benchmark.graders["bfcl/irrelevance_0"](call).correct


def test_who_could_not_be_asked_has_not_decided_to_call_no_function(gorilla: Path) -> None:
    benchmark = load_benchmark("bfcl", str(gorilla), 1)
    wanted = Wanted(benchmark, benchmark.settings, benchmark.problems[-1], 0)
    figures: dict[str, Any] = {"response_tokens": 0, "turns": 0, "calls": 0, "tool_errors": 0, "finish": "length"}
    unasked = wanted.answer(parts=(), correct=False, reason="its prompt has 9000 tokens", **figures)
    assert wanted.id.startswith("bfcl/bfcl/irrelevance") and not unasked.correct and "9000" in unasked.reason
    assert wanted.answer(parts=(Part(who="model", text="No."),), correct=False, reason="", **figures).correct


def test_bfcl_without_an_allowed_call_names_the_line(gorilla: Path) -> None:
    write(gorilla / "possible_answer" / "BFCL_v3_simple.json", [{"id": "simple_0", "ground_truth": []}])
    with pytest.raises(DataError, match=r"BFCL_v3_simple\.json line 2.*simple_1"):
        load_benchmark("bfcl", str(gorilla), None)


def test_ifeval_grades_by_its_instructions(tmp_path: Path) -> None:
    row = {
        "key": 7,
        "prompt": "Write without commas.",
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{"keywords": None}, {"keywords": ["rain"]}],
    }
    write(tmp_path / "i.jsonl", [row])
    benchmark = load_benchmark("ifeval", str(tmp_path / "i.jsonl"), None)
    half = benchmark.graders["ifeval/7"]("sun and wind")
    assert not half.correct and half.figures["instruction_strict"] == 0.5 and "keywords:existence" in half.reason
    assert benchmark.graders["ifeval/7"]("rain and wind").correct


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("arena-hard", "--data arena-hard=FOLDER"), ("bfcl", "--data bfcl=FOLDER"), ("aime23", "no benchmark")],
)
def test_what_can_not_be_graded_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        load_benchmark(name, "", None)
