"""Is this answer the gold? By the gold's own kind: words, a choice, a number, a set of reals, an equation, a group, ...

Invariants:
- an answer of another kind than the gold's is wrong, whatever numbers it holds;
- nothing is compared with a tolerance; one of two answers is no answer;
- a gold that can't be read is met only by the same text.

Nothing here has a time limit: run it where it can be killed (`actors.verification`). What can be decided at sight is
decided by `policies.verification` without this module, whose import takes about a second.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from policies.answers.expressions import approximate, equal_expressions, parse_expression, proportional
from policies.answers.notation import Unreadable, key, normalise
from policies.answers.numbers import DOUBLE_DIGITS, parse_number, printed_as, split_unit
from policies.answers.regions import looks_like_region, read_region
from policies.answers.sight import same_at_sight
from policies.answers.structure import (
    Group,
    Matrix,
    as_group,
    as_matrix,
    is_relation,
    plus_or_minus,
    sides,
    split_top,
    without_name,
)

Outcome = Literal["right", "wrong", "unparsable"]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timers are off; the worker has its own


def compare_answers(gold: str, answer: str) -> Outcome:
    """`unparsable` if the answer can't be read as anything that could be the gold."""
    try:
        return "right" if _same(normalise(gold), normalise(answer)) else "wrong"
    except Unreadable:
        return "unparsable"


def _same(gold: str, answer: str) -> bool:
    """Raises `Unreadable`."""
    seen = same_at_sight(gold, answer)
    if seen is not None:
        return seen
    if parse_number(gold) is not None:
        return _is_number(gold, answer)
    if looks_like_region(gold):
        return _same_region(gold, answer)
    return _same_named(gold, answer)


def _is_number(gold: str, answer: str) -> bool:
    """A gold that is a number, an answer that is none at sight: an expression with exactly that value?"""
    wanted, (_, value) = parse_number(gold), without_name(answer, quantities=True)
    assert wanted is not None, "the caller has looked"
    if wanted.base != 10 or as_group(value) is not None:
        return False
    exact = sympy.Rational(wanted.value.numerator, wanted.value.denominator)
    return equal_expressions(exact, parse_expression(value))


def _same_region(gold: str, answer: str) -> bool:
    try:
        wanted = read_region(gold)
    except Unreadable:
        return _same_conditions(gold, answer) if is_relation(gold) else _math_verify(gold, answer)
    if looks_like_region(answer) or as_group(answer) is not None or answer == "\\emptyset":
        return wanted.same_as(read_region(answer))
    name, value = without_name(answer)
    if name and (looks_like_region(value) or as_group(value) is not None):
        return wanted.same_as(read_region(answer))
    return False


def _same_conditions(gold: str, answer: str) -> bool:
    """Inequalities in several variables: the same but for a positive factor."""
    return _forms_match([_condition(part) for part in split_top(gold, ", | and ")], answer)


def _forms_match(wanted: Sequence[tuple[str, sympy.Expr]], answer: str) -> bool:
    given = [_condition(part) for part in split_top(answer, ", | and ")]
    if len(given) != len(wanted):
        return False
    for operator, form in wanted:
        matching = [
            index
            for index, (other, its_form) in enumerate(given)
            if other == operator and proportional(form, its_form, positive=operator in ("<", "\\le"))
        ]
        if not matching:
            return False
        del given[matching[0]]
    return True


def _condition(text: str) -> tuple[str, sympy.Expr]:
    """`(operator, left - right)` with the operator turned to `<`, `\\le`, `\\ne` or `=`."""
    for operator, turned in (("\\le", None), ("\\ge", "\\le"), ("\\ne", None), ("<", None), (">", "<"), ("=", None)):
        parts = split_top(text, re.escape(operator) + ("(?![A-Za-z])" if operator[0] == "\\" else ""))
        if len(parts) == 2:
            left, right = (parse_expression(normalise(part)) for part in parts)
            return (operator, left - right) if turned is None else (turned, right - left)
    raise Unreadable(f"{text!r} is no condition")


def _same_named(gold: str, answer: str) -> bool:
    """Golds that may carry a name: `x = 5`, `f(x) = 2x`; or be an equation; or several of them."""
    wanted, given = as_group(gold), as_group(answer)
    if wanted is not None and wanted.kind == "list":
        return _same_group(wanted, given or as_group(without_name(answer)[1]) or Group("list", (answer,)))
    gold_name, gold_value = without_name(gold)
    if len(sides(gold)) > 1 and not is_relation(gold):
        if len(sides(answer)) > 1:
            if _same_equation(gold, answer):
                return True
            answer_name, answer_value = without_name(answer, quantities=True)
            called_alike = answer_name in (gold_name, "y") if "(" in gold_name else answer_name == gold_name
            return bool(gold_name) and called_alike and _same(gold_value, answer_value)
        if not gold_name:
            return False
    if gold_name:
        return _same(gold_value, answer)
    return _same_value(gold_value, without_name(answer, quantities=True)[1])


def _same_equation(gold: str, answer: str) -> bool:
    """Equations that differ by a factor, by what is added to both sides, or by a denominator: y = 1/x, xy = 1."""
    wanted, given = sides(gold), sides(answer)
    if len(wanted) != 2 or len(given) != 2:
        return False
    try:
        first, second = (parse_expression(left) - parse_expression(right) for left, right in (wanted, given))
        over, other_over = (sympy.fraction(sympy.together(form))[0] for form in (first, second))
        return proportional(first, second) or proportional(over, other_over)
    except Unreadable:
        return False


def _same_value(gold: str, answer: str) -> bool:
    """Golds without a name that are no number at sight."""
    ratio = split_top(gold, " ?: ?")
    if len(ratio) > 1:  # 12:00 and 1:2:3 are not divided out
        return _same_items(ratio, split_top(answer, " ?: ?"), ordered=True)
    wanted_matrix = as_matrix(gold)
    if wanted_matrix is not None:
        return _same_matrix(wanted_matrix, as_matrix(answer))
    wanted = as_group(gold)
    if wanted is None and len(plus_or_minus(gold)) > 1:
        wanted = Group("list", tuple(plus_or_minus(gold)))
    if wanted is not None:
        if wanted.kind == "tuple" and len(wanted.items) == 2 and looks_like_region(answer):
            return _same_region(gold, answer)
        given = as_group(answer)
        if given is None and len(plus_or_minus(answer)) > 1:
            given = Group("list", tuple(plus_or_minus(answer)))
        return _same_group(wanted, given or Group("list", (answer,)))
    if as_group(answer) is not None or looks_like_region(answer):
        return False
    return _same_expression(gold, answer)


def _same_matrix(gold: Matrix, answer: Matrix | None) -> bool:
    if answer is None or gold.kind != answer.kind or list(map(len, gold.rows)) != list(map(len, answer.rows)):
        return False
    cells = zip((cell for row in gold.rows for cell in row), (cell for row in answer.rows for cell in row), strict=True)
    return all(_same(wanted, given) for wanted, given in cells)


def _same_group(gold: Group, answer: Group) -> bool:
    """Tuples in order, sets and lists in any; a list answers a tuple or a set, a tuple answers no set."""
    if {gold.kind, answer.kind} == {"set", "tuple"}:
        return False
    named = [without_name(item) for item in gold.items]
    several = len({name for name, _ in named if name}) > 1
    if several and answer.kind == "set":
        return False
    if several and gold.kind == "list" and answer.kind == "list":
        return _same_items(gold.items, [item for item in answer.items if without_name(item)[0]], ordered=False) or (
            not any(without_name(item)[0] for item in answer.items)
            and _same_items([value for _, value in named], answer.items, ordered=True)
        )
    wanted = [value for _, value in named]
    called = [without_name(item) for item in answer.items]
    if gold.kind == "tuple" and all(name for name, _ in called):
        called.sort()  # y = 1, x = 2 is the point (2, 1)
    given = [value for _, value in called]
    if "set" in (gold.kind, answer.kind):
        return _covers(wanted, given) and _covers(given, wanted)
    return _same_items(wanted, given, ordered="tuple" in (gold.kind, answer.kind))


def _same_items(gold: Sequence[str], answer: Sequence[str], *, ordered: bool) -> bool:
    if len(gold) != len(answer):
        return False
    if ordered:
        return all(_same_or_unlike(wanted, given) for wanted, given in zip(gold, answer, strict=True))
    if Counter(map(key, gold)) == Counter(map(key, answer)):
        return True
    left = list(answer)
    for wanted in gold:
        for index, given in enumerate(left):
            if _same_or_unlike(wanted, given):
                del left[index]
                break
        else:
            return False
    return True


def _covers(gold: Sequence[str], answer: Sequence[str]) -> bool:
    return all(any(_same_or_unlike(wanted, given) for given in answer) for wanted in gold)


def _same_or_unlike(gold: str, answer: str) -> bool:
    """As `_same`, where an item that can't be read is one that does not match."""
    try:
        return _same(gold, answer)
    except Unreadable:
        return False


def _same_expression(gold: str, answer: str) -> bool:
    (gold, gold_unit), (answer, answer_unit) = split_unit(gold), split_unit(answer)
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    wanted = _expression(gold)
    given_number = parse_number(answer)
    if wanted is None:
        return _math_verify(gold, answer)
    if given_number is not None and not wanted.free_symbols:
        if given_number.decimals >= DOUBLE_DIGITS and (value := approximate(wanted)) is not None:
            exact = Fraction(int(value * 10**30), 10**30) if abs(value) < 10**15 else None
            if exact is not None and printed_as(exact, given_number):
                return True
        given = sympy.Rational(given_number.value.numerator, given_number.value.denominator)
        return given_number.base == 10 and equal_expressions(wanted, given)
    return equal_expressions(wanted, parse_expression(answer))


def _expression(text: str) -> sympy.Expr | None:
    try:
        return parse_expression(text)
    except Unreadable:
        return None


def _math_verify(gold: str, answer: str) -> bool:
    """What is left: math-verify's own reading of both, without its timers. Raises `Unreadable` if it has none."""
    readings = [
        parse(f"\\boxed{{{text}}}", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=0)
        for text in (gold, answer)
    ]
    if not all(readings):
        raise Unreadable("neither we nor math-verify can read both")
    return verify(*readings, allow_set_relation_comp=True, float_rounding=12, timeout_seconds=None)
