"""Verdicts: the last assistant turn decides, and integers are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.verification import extract_answer, last_boxed, verify_answer


def answer(text: str) -> str:
    return f"so</reason><answer>\\boxed{{{text}}}</answer>"


@pytest.mark.parametrize("text", ["144", "+144", " 144 ", "0144", "144.", "\\text{144}", "\\,144", "$144$"])
def test_an_integer_may_be_written_in_many_ways(text: str) -> None:
    assert verify_answer(answer(text), "144").correct


@pytest.mark.parametrize("text", ["1,234,567", "1{,}234{,}567", "1\\,234\\,567", "1 234 567"])
def test_thousands_separators_are_read(text: str) -> None:
    assert verify_answer(answer(text), "1234567").correct


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("14400", "wrong"),
        ("145", "wrong"),
        ("-144", "wrong"),
        ("1,44", "unparsable"),
        ("14_4", "unparsable"),
        ("144%", "unparsable"),
        ("144.0001", "unparsable"),
        ("", "unparsable"),
    ],
)
def test_there_is_no_tolerance(text: str, reason: str) -> None:
    verdict = verify_answer(answer(text), "144")
    assert (verdict.correct, verdict.reason) == (False, reason)


def test_large_integers_are_exact() -> None:
    gold = str(10**40 + 1)
    assert verify_answer(answer(gold), gold).correct
    assert not verify_answer(answer(str(10**40)), gold).correct


def test_the_last_answer_block_counts() -> None:
    assert verify_answer(answer("1") + answer("144"), "144").correct
    assert not verify_answer(answer("144") + answer("1"), "144").correct


@pytest.mark.parametrize("turn", ["\\boxed{144}", "<answer>144</answer>", "<answer>\\boxed{144}", ""])
def test_an_answer_needs_its_tag_and_its_box(turn: str) -> None:
    assert verify_answer(turn, "144").reason == "no_answer"


def test_nested_braces_are_kept() -> None:
    assert extract_answer("<answer>\\boxed{\\frac{1}{2}}</answer>") == "\\frac{1}{2}"
    assert last_boxed("\\boxed{1} \\boxed{2") == "1"


def test_text_golds_compare_without_spacing() -> None:
    assert verify_answer(answer("( 1, 2 )"), "(1,2)").correct
    assert not verify_answer(answer("(2,1)"), "(1,2)").correct


def test_an_empty_gold_is_refused() -> None:
    with pytest.raises(ValueError, match="gold answer is empty"):
        verify_answer(answer("1"), " ")


@given(st.text())
def test_any_text_gets_a_verdict(text: str) -> None:
    assert verify_answer(text, "5").reason in {"right", "wrong", "unparsable", "no_answer"}
    assert verify_answer(answer(text), "5").reason in {"right", "wrong", "unparsable", "no_answer"}


@given(st.integers(), st.integers())
def test_integers_are_right_exactly_when_equal(given_value: int, gold: int) -> None:
    assert verify_answer(answer(str(given_value)), str(gold)).correct == (given_value == gold)
