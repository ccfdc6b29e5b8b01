"""Rows of each public set's shape, with made-up content, become problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestration.data.problems import load_problems
from orchestration.data.rows import DataError
from policies.data_options import DatasetOptions
from policies.problem_sets import PROBLEM_SETS, ProblemSet
from policies.trajectory import Problem

REAL = Path(__file__).parents[4] / "shared" / "data"
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its "
    'own line after "Answer:".'
)


def load(tmp_path: Path, name: str, rows: list[dict[str, Any]], **options: Any) -> list[Problem]:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_problems(DatasetOptions(name=name, path=str(path), **options)).problems


def dapo(question: str, gold: str, index: str) -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": DAPO.format(question)}],
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": index},
    }


def test_dapo_is_stripped_of_its_instructions_and_each_problem_comes_once(tmp_path: Path) -> None:
    rows = [dapo("What is 1 - 4?", "-3", "a"), dapo("What is 2 + 2?", "4", "b"), dapo("What is 1 - 4?", "-3", "a")]
    problems = load(tmp_path, "dapo-17k", rows)
    assert [(each.question, each.gold) for each in problems] == [("What is 1 - 4?", "-3"), ("What is 2 + 2?", "4")]


def test_a_dapo_question_with_two_golds_is_left_out(tmp_path: Path) -> None:
    rows = [dapo("A?", "1", "a"), dapo("B?", "2", "b"), dapo("A?", "3", "c")]
    assert [each.question for each in load(tmp_path, "dapo-17k", rows)] == ["B?"]


def test_both_forms_of_dapo_give_the_same_problems(tmp_path: Path) -> None:
    raw = load(tmp_path, "dapo-17k", [dapo("What is 1 - 4?", "-3", "a")])
    processed = load(tmp_path, "dapo-17k-processed", [{"prompt": "What is 1 - 4?", "solution": "-3"}])
    assert (raw[0].question, raw[0].gold) == (processed[0].question, processed[0].gold)


def test_open_math_reasoning_keeps_problems_with_an_answer_once(tmp_path: Path) -> None:
    row = {"problem": "P?", "expected_answer": "7", "problem_type": "has_answer_extracted", "generated_solution": "s1"}
    rows = [row, row | {"generated_solution": "s2"}, row | {"problem": "prove", "problem_type": "converted_proof"}]
    assert [(each.question, each.gold) for each in load(tmp_path, "open-math-reasoning", rows)] == [("P?", "7")]


def test_gsm8k_takes_the_number_behind_the_mark(tmp_path: Path) -> None:
    rows = [{"question": "How much?", "answer": "He pays 500+700=<<500+700=1200>>1200.\n#### 1,200"}]
    assert load(tmp_path, "gsm8k", rows)[0].gold == "1200"
    with pytest.raises(DataError, match=r"line 1.*####"):
        load(tmp_path, "gsm8k", [{"question": "How much?", "answer": "1200"}])


def test_math_500_keeps_subjects_and_ids(tmp_path: Path) -> None:
    row = {
        "problem": "P?",
        "answer": "\\frac{1}{2}",
        "subject": "Algebra",
        "level": 3,
        "unique_id": "test/algebra/1.json",
    }
    (problem,) = load(tmp_path, "math500", [row])
    assert (problem.id, problem.family, problem.gold) == ("math500/test/algebra/1.json", "algebra", "\\frac{1}{2}")


@pytest.mark.parametrize(("name", "column"), [("aime24", "problem"), ("aime25", "question")])
def test_aime_golds_become_integers(tmp_path: Path, name: str, column: str) -> None:
    rows = [{"id": n, column: f"P{n}?", "answer": gold} for n, gold in enumerate(["033", "336^\\circ", 204])]
    assert [each.gold for each in load(tmp_path, name, rows)] == ["33", "336", "204"]
    with pytest.raises(DataError, match="line 1"):
        load(tmp_path, name, [{column: "P?", "answer": "1000"}])


def test_hmmt_golds_stay_latex(tmp_path: Path) -> None:
    rows = [{"problem_idx": 1, "problem": "P?", "answer": "\\frac{9\\sqrt{23}}{23}", "problem_type": ["Geometry"]}]
    assert load(tmp_path, "hmmt25", rows)[0].gold == "\\frac{9\\sqrt{23}}{23}"


def gpqa(number: int) -> dict[str, Any]:
    return {
        "Question": f"Q{number}?",
        "Correct Answer": "right",
        "Incorrect Answer 1": "one",
        "Incorrect Answer 2": "two",
        "Incorrect Answer 3": "three",
        "Record ID": f"rec{number}",
    }


def test_gpqa_choices_are_shuffled_by_the_seed_and_the_gold_goes_along(tmp_path: Path) -> None:
    rows = [gpqa(number) for number in range(40)]
    one, same = load(tmp_path, "gpqa", rows, seed=1), load(tmp_path, "gpqa", rows, seed=1)
    other = load(tmp_path, "gpqa", rows, seed=2)
    assert one == same and [each.gold for each in one] != [each.gold for each in other]
    assert {each.gold for each in one} == set("ABCD")
    for problem in one:
        assert f"{problem.gold}. right" in problem.question


@pytest.mark.parametrize("gold", [float("nan"), float("inf")])
def test_a_gold_that_some_library_wrote_for_none_is_refused(tmp_path: Path, gold: float) -> None:
    with pytest.raises(DataError, match=r"line 1: column 'answer' holds (nan|inf), which is no number"):
        load(tmp_path, "plain", [{"question": "What is 0 / 0?", "answer": gold}])


def test_a_mapping_that_reads_what_a_row_lacks_is_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mistaken = ProblemSet("mine", "", ("task",), lambda row, _: Problem(id="1", question=row["task"], gold=row["gold"]))
    monkeypatch.setitem(PROBLEM_SETS, "mine", mistaken)
    with pytest.raises(
        DataError, match=r"line 2: the mapping reads 'gold', which this row lacks; name it in .*columns"
    ):
        load(tmp_path, "mine", [{"task": "What is 1?", "gold": "1"}, {"task": "What is 2?"}])


def test_integers_only_leaves_out_the_rest_and_writes_golds_plainly(tmp_path: Path) -> None:
    rows = [{"question": f"{gold}?", "answer": gold} for gold in ("1,000", "1/2", "-7", "x", "3.0", "45^\\circ")]
    assert [each.gold for each in load(tmp_path, "plain", rows, integers_only=True)] == ["1000", "-7", "3", "45"]


def test_what_overlaps_with_evaluation_data_is_left_out(tmp_path: Path) -> None:
    copied = "A train leaves the old station at noon with ninety-nine people; how many?"
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"question": copied, "answer": "99"}) + "\n")
    rows = [
        {
            "question": "Tom says: a TRAIN leaves the old station, at noon, with $ninety$-nine people. Why?",
            "answer": "1",
        },
        {"question": "A train leaves the new station at noon with ninety people; how many?", "answer": "2"},
    ]
    kept = load(tmp_path, "plain", rows, decontaminate=(str(evaluation),))
    assert [each.gold for each in kept] == ["2"]


def test_only_what_a_filter_has_kept_is_taken(tmp_path: Path) -> None:
    rows = [{"id": str(n), "question": f"Q{n}", "answer": "1"} for n in range(3)]
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps({"id": f"plain/{n}", "kept": n == 1}) + "\n" for n in range(3)))
    assert [each.id for each in load(tmp_path, "plain", rows, keep=kept)] == ["plain/1"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_the_real_files_are_read() -> None:
    for name, file, count in (("gsm8k", "gsm8k-test", 1319), ("gsm8k", "gsm8k-train", 7473), ("aime24", "aime24", 30)):
        assert len(load_problems(DatasetOptions(name=name, path=str(REAL / f"{file}.jsonl"))).problems) == count
