"""Figures and page of an evaluation, from answers made by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestration.evaluation.answers import Answer, Part
from orchestration.evaluation.page import write_page
from orchestration.evaluation.summary import powers_of_two, summarise, tables


def answer(problem: str, sample: int, extracted: str, correct: bool, **more: object) -> Answer:
    return Answer.model_validate(
        {
            "benchmark": "aime24",
            "problem": problem,
            "family": problem[0],
            "question": "<b>What?</b>",
            "gold": "1000",
            "sample": sample,
            "parts": (Part(who="model", text="if a < b & c"),),
            "extracted": extracted,
            "correct": correct,
            "reason": "right" if correct else "wrong",
            "finish": "answered",
            "response_tokens": 100,
            "turns": 2,
            "calls": 2,
            "tool_errors": 1,
        }
        | more
    )


ANSWERS = [
    answer("a1", 0, "1,000", True),
    answer("a1", 1, "1000", True),
    answer("a1", 2, "5", False, finish="length", calls=0, tool_errors=0, response_tokens=400),
    answer("b1", 0, "7", False),
    answer("b1", 1, "7", False),
    answer("b1", 2, "1000", True),
    answer("b2", 0, "7", False),
]


def test_figures_are_those_counted_by_hand() -> None:
    summary = summarise("aime24", ANSWERS, 3, values=True)
    assert (summary.problems, summary.incomplete) == (2, 1)
    assert summary.average.mean == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert summary.pass_at[1].mean == pytest.approx(0.5)
    assert summary.pass_at[2].mean == pytest.approx((1 + 2 / 3) / 2)
    assert summary.pass_at[3].mean == 1.0
    assert summary.majority is not None and summary.majority.mean == 0.5
    assert summary.response_tokens == pytest.approx((5 * 100 + 400) / 6)
    assert summary.tool_error_share == pytest.approx(5 / 10)
    assert (summary.tool_call_rate, summary.truncated_share) == (pytest.approx(5 / 6), pytest.approx(1 / 6))
    assert summary.families["a"].mean == pytest.approx(2 / 3)
    assert json.loads(json.dumps(summary.as_dict()))["pass_at"]["2"]["mean"] == pytest.approx(5 / 6)


def test_who_failed_or_was_cut_off_has_no_vote() -> None:
    unplayed = [
        answer("a1", sample, "", False, parts=(), finish=finish, reason=reason)
        for sample, finish, reason in ((1, "failed", "the engine died"), (2, "length", "its prompt has 9 tokens"))
    ]
    summary = summarise("aime24", [answer("a1", 0, "1000", True), *unplayed], 3, values=True)
    assert summary.majority is not None and summary.majority.mean == 1.0


def test_without_a_whole_problem_there_are_no_figures() -> None:
    with pytest.raises(ValueError, match="all 4 samples"):
        summarise("aime24", ANSWERS, 4, values=True)


def test_k_goes_in_powers_of_two_to_the_number_of_samples() -> None:
    assert (powers_of_two(16), powers_of_two(6), powers_of_two(1)) == ([1, 2, 4, 8, 16], [1, 2, 4, 6], [1])


def test_every_word_and_figure_of_the_tables_is_whole_on_80_columns() -> None:
    all_right = [
        answer("a1", sample, "1000", True, benchmark="mathematics", response_tokens=29_999) for sample in (0, 1)
    ]
    summaries = [
        summarise("aime24", ANSWERS, 3, values=True),
        *[summarise("mathematics", all_right, 2, values=True)] * 4,
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables(summaries):
        console.print(table)
    text = console.export_text()
    words = text.split()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for word in ("tool", "errors", "avg@k", "pass@1", "pass@2", "pass@3", "maj@k", "83.3%", "50.0%", "29999"):
        assert word in words
    assert words.count("mathematics") == 4 and words.count("aime24") == 1, "no benchmark is lost"
    assert words.count("100.0%") == 4 * 4 + 1, "avg@k, pass@1, pass@2 and maj@k; pass@3 of aime24"


def test_the_page_holds_every_answer_and_nothing_that_a_browser_would_run(tmp_path: Path) -> None:
    summaries = [summarise("aime24", ANSWERS, 3, values=True)]
    page = write_page(tmp_path / "report.html", "A <model>", {"seed": 0}, summaries, ANSWERS).read_text()
    assert page.count("if a &lt; b &amp; c") == len(ANSWERS)
    assert "<b>What?" not in page and "A <model>" not in page and "http" not in page
