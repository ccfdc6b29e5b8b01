"""Verdicts by kind, and the laws that every comparison keeps. (Time limits are the workers': tests/actors/.)"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.answers.comparison import compare_answers
from tests.policies.answers.cases import CASES, Case

EACH_CASE = pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.kind}: {case.gold}") for case in CASES])


@EACH_CASE
def test_the_gold_is_known_in_every_writing_and_nothing_else_is_taken_for_it(case: Case) -> None:
    verdicts = {answer: compare_answers(case.gold, answer) == "right" for answer, _ in case.verdicts()}
    assert verdicts == dict(case.verdicts())
    assert compare_answers(case.gold, case.gold) == "right"


def test_the_cases_are_read() -> None:
    assert sum(len(case.verdicts()) for case in CASES) > 800


@pytest.mark.parametrize("answer", ["", "?", "\\frac{}{}", "x +", "\\oint \\oint", "1 2 3", "(((", "\\text{}", "}{"])
def test_what_can_t_be_read_is_told_from_what_is_wrong(answer: str) -> None:
    assert compare_answers("2\\sqrt{3}", answer) == "unparsable"


NUMBERS = st.fractions(min_value=-50, max_value=50, max_denominator=12)


def latex(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


@given(st.lists(NUMBERS, min_size=1, max_size=5, unique=True), st.randoms(use_true_random=False), NUMBERS)
@settings(deadline=None)
def test_the_order_of_a_set_does_not_matter_and_that_of_a_tuple_does(members, random, other) -> None:
    shuffled = random.sample(members, len(members))

    def written(kind: str, values: list[Fraction]) -> str:
        return kind.format(", ".join(map(latex, values)))

    assert compare_answers(written("\\{{{}\\}}", members), written("\\{{{}\\}}", shuffled)) == "right"
    if len(members) > 1:
        assert (compare_answers(written("({})", members), written("({})", shuffled)) == "right") == (
            members == shuffled
        )
    if other not in members:
        swapped = [other, *shuffled[1:]]
        assert compare_answers(written("\\{{{}\\}}", members), written("\\{{{}\\}}", swapped)) != "right"


@given(NUMBERS, NUMBERS)
@settings(deadline=None)
def test_rationals_are_right_exactly_when_equal(gold: Fraction, answer: Fraction) -> None:
    sign, size = ("-" if answer < 0 else ""), abs(answer)
    whole, rest = divmod(size.numerator, size.denominator)
    mixed = f"{sign}{whole}\\frac{{{rest}}}{{{size.denominator}}}" if rest and whole else latex(answer)
    for text in (latex(answer), str(answer), mixed):
        assert (compare_answers(latex(gold), text) == "right") == (gold == answer)


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5), st.sampled_from(["<", "\\le"]))
@settings(deadline=None, max_examples=40)
def test_an_interval_is_met_by_its_inequality_alone(
    low: int, high: int, other_low: int, other_high: int, sign: str
) -> None:
    if low >= high or other_low >= other_high:
        return
    brackets = "()" if sign == "<" else "[]"
    gold = f"{brackets[0]}{low}, {high}{brackets[1]}"
    same = (low, high) == (other_low, other_high)
    assert (compare_answers(gold, f"{other_low} {sign} x {sign} {other_high}") == "right") == same
    assert compare_answers(gold, f"{low} {sign} x < {high + 1}") != "right"


@given(st.tuples(*[st.integers(-4, 4)] * 3), st.integers(-3, 3).filter(bool), st.tuples(*[st.integers(-4, 4)] * 3))
@settings(deadline=None, max_examples=30)
def test_equations_are_the_same_up_to_a_factor(gold, factor: int, other) -> None:
    def line(a: int, b: int, c: int) -> str:
        return f"{a}x + {b}y + {c} = 0".replace("+ -", "- ")

    if not (gold[0] and gold[1] and other[0] and other[1]):
        return
    assert compare_answers(line(*gold), line(*(factor * part for part in gold))) == "right"
    proportional = all(gold[i] * other[j] == gold[j] * other[i] for i in range(3) for j in range(3))
    assert (compare_answers(line(*gold), line(*other)) == "right") == proportional


FRAGMENTS = st.lists(
    st.sampled_from(
        "0 1 2 12 . , - + = ( ) [ ] { } \\{ \\} \\frac \\sqrt ^ _ x y \\text{ % \\pm \\le < and \\cup \\in "
        "\\begin{pmatrix} \\end{pmatrix} & \\\\ \\infty | ! : \\mathbb{R} \\setminus \\sin \\log \\int \\mid i e".split(
            " "
        )
    ),
    max_size=8,
).map(" ".join)


@given(FRAGMENTS.filter(str.strip), FRAGMENTS | st.text(max_size=20))
@settings(deadline=None, max_examples=150)
def test_any_two_texts_are_compared_without_an_error(gold: str, answer: str) -> None:
    assert compare_answers(gold, answer) in {"right", "wrong", "unparsable"}
