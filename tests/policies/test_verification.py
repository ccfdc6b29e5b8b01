"""Verdicts at sight: the last assistant turn decides, integers are exact, and any text gets a verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.trajectory import Verdict
from policies.verification import extract_answer, final_answer, judge_at_sight


def judged(text: str, gold: str) -> Verdict:
    verdict = judge_at_sight(extract_answer(f"so</reason><answer>\\boxed{{{text}}}</answer>"), gold)
    assert verdict is not None, "this needs no mathematics"
    return verdict


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("144", "right"),
        ("145", "wrong"),
        ("-144", "wrong"),
        ("144.0001", "wrong"),
        ("144\\%", "right"),
        ("14400\\%", "wrong"),
        ("1,44", "unparsable"),
        ("12 \\times 12", "unparsable"),
        ("", "unparsable"),
        ("\\text{a gross}", "unparsable"),
        ("1" * 5001, "unparsable"),
    ],
)
def test_an_integer_gold_is_met_by_that_integer_alone(text: str, reason: str) -> None:
    assert judged(text, "144").reason == reason


def test_large_integers_are_exact() -> None:
    gold = str(10**40 + 1)
    assert judged(gold, gold).correct
    assert not judged(str(10**40), gold).correct


@pytest.mark.parametrize("gold", ["2\\sqrt{3}", "(-\\infty, 3)", "x + 1", "\\{1, 2\\}"])
def test_what_takes_mathematics_is_left_to_others(gold: str) -> None:
    assert judge_at_sight("3", gold) is None
    assert judge_at_sight(f" {gold}. ", gold) == Verdict(correct=True, extracted=f" {gold}. ", reason="right")


@pytest.mark.parametrize("gold", ["", " ", "\n"])
def test_an_empty_gold_is_refused(gold: str) -> None:
    with pytest.raises(ValueError, match="gold answer is empty"):
        judge_at_sight("1", gold)


def test_an_unparsable_gold_is_met_by_itself_alone() -> None:
    assert judged("\\oint", "\\oint").correct
    assert judge_at_sight("0", "\\oint") is None


def test_no_answer_is_told_from_a_wrong_one() -> None:
    assert judge_at_sight(None, "5") == Verdict(correct=False, reason="no_answer")


def test_lone_surrogates_are_made_readable() -> None:
    assert final_answer("<answer>\\boxed{\ud800}</answer>") == "?"


@given(st.text(), st.text(min_size=1).filter(str.strip))
def test_any_text_gets_a_verdict_or_goes_to_the_comparison(text: str, gold: str) -> None:
    verdict = judge_at_sight(text, gold)
    assert verdict is None or verdict.reason in {"right", "wrong", "unparsable"}
    integer = judge_at_sight(text, "5")
    assert integer is None or integer.correct == (integer.reason == "right")


MATHEMATICS = st.lists(
    st.sampled_from(
        "0 1 2 12 . , - + = ( ) [ ] { } \\{ \\} \\frac \\sqrt ^ _ x \\text{ % \\pm \\le < and \\ $ ½ ² − e".split(" ")
    ),
    max_size=12,
).map("".join)


@given(MATHEMATICS, MATHEMATICS.filter(str.strip))
def test_broken_mathematics_gets_a_verdict_too(text: str, gold: str) -> None:
    for wanted in (gold, "5", "1/2"):
        verdict = judge_at_sight(text, wanted)
        assert verdict is None or verdict.extracted == text


@given(st.integers(), st.integers())
def test_integers_are_right_exactly_when_equal(given_value: int, gold: int) -> None:
    assert judged(str(given_value), str(gold)).correct == (given_value == gold)
    assert judged(f"{given_value:,}", str(gold)).correct == (given_value == gold)


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_a_quotient_is_an_integer_exactly_when_it_is(over: int, under: int) -> None:
    for text in (f"\\frac{{{over}}}{{{under}}}", f"{over}/{under}"):
        assert judged(text, str(over // under)).correct == (over % under == 0)
