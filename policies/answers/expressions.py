"""Mathematical expressions: read by latex2sympy (math-verify's parser), compared exactly.

Invariants:
- decimals are read as exact fractions, and letters keep their case;
- two expressions are equal if they agree, to `_AGREEING_DIGITS` digits, at every one of several fixed points at which
  both have real values (complex values if none has): a zero test by evaluation, as by Schwartz and Zippel; it needs
  no simplification. Tiny numbers are compared relative to their size: `1/2004!` is not `1/2006!`. Where all of it can
  be evaluated to any precision, the difference must vanish, too: `10^{100}+1` is not `10^{100}`.

Nothing here has a time limit: run it where it can be killed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from sympy.core.function import AppliedUndef

from policies.answers.notation import Unreadable

_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline ?\{(\d+)\}")
_MIXED = re.compile(r"(?<![\d.}A-Za-z^_])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_JUXTAPOSED = re.compile(r"(?<![_^\d])\d+ \d")
_TEXT = re.compile(r"\\text ?\{ ?([^{}]*?) ?\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_UNREADABLE = re.compile(r"\\(?:ldots|cdots|dots|approx|sim|text)(?![A-Za-z])|[&#?;:]|\d ?_|\d[eE][+-]?\d|\.\.")
_CONVERSION = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_LONGEST = 2000
"""Characters of an expression that is read."""

_WORKING_DIGITS = 40
_AGREEING_DIGITS = 25
_POINTS = 6
_BY_QUADRATURE = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
"""What has as many digits as the numerical method finds; the rest sympy evaluates with more digits than cancel."""


@functools.lru_cache(maxsize=256)
def parse_expression(text: str) -> sympy.Expr:
    """The expression that the whole of `text` (normalised) is. Raises `Unreadable`."""
    if not text or len(text) > _LONGEST:
        raise Unreadable(f"{len(text)} characters are not read as an expression")
    prepared = _MIXED.sub(_proper_mixed, _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text))
    prepared = _DECIMAL.sub(_exact_decimal, _REPEATING.sub(_exact_repeating, prepared))
    prepared = _TEXT.sub(_text_symbol, prepared)
    prepared = prepared.replace("^\\circ", "\\cdot\\frac{\\pi}{180}" if _TRIGONOMETRY.search(prepared) else "")
    if _JUXTAPOSED.search(prepared) or _UNREADABLE.search(prepared):
        raise Unreadable(f"{text!r} is no expression")
    try:
        parsed = latex2sympy(
            prepared, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=_CONVERSION
        )
    except Exception as error:  # the parser raises bare Exceptions, and whatever sympy raises on the way
        raise Unreadable(f"{text!r}: {error}") from error
    if not isinstance(parsed, sympy.Expr):
        raise Unreadable(f"{text!r} is no expression but {type(parsed).__name__}")
    expression: Any = parsed.subs(sympy.Symbol("i", real=True), sympy.I).doit()
    return expression.replace(_is_odd_root, _real_root)


def equal_expressions(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether the two have the same value wherever both have one. Raises `Unreadable` if that can't be told."""
    if first == second or first.is_infinite or second.is_infinite:
        return first == second
    compared, exact = False, not (first.has(*_BY_QUADRATURE) or second.has(*_BY_QUADRATURE))
    for one, other, difference in _evaluated((first, second, first - second)):
        if not _agree(one, other) or (exact and not _is_zero(difference)):
            return False
        compared = True
    if not compared:
        raise Unreadable(f"no point at which both {first} and {second} have a value")
    return True


def proportional(first: sympy.Expr, second: sympy.Expr, positive: bool = False) -> bool:
    """Whether `second` is a constant multiple of `first`: what equations `first = 0` and `second = 0` need to be one.

    With `positive`, the constant must be positive: what inequalities need. Raises `Unreadable` if that can't be told.
    """
    if (first.free_symbols or second.free_symbols) and first.free_symbols != second.free_symbols:
        return False
    ratios: list[sympy.Expr] = []
    for one, other in _evaluated((first, second)):
        if _is_zero(one) or _is_zero(other):
            if _is_zero(one) != _is_zero(other):
                return False
            continue
        ratios.append(other / one)
        if not _agree(ratios[0], ratios[-1]):
            return False
    if not ratios:
        raise Unreadable(f"no point at which both {first} and {second} have a value")
    return bool(ratios[0].is_real and ratios[0] > 0) if positive else True


def approximate(expression: sympy.Expr) -> sympy.Expr | None:
    """The real value of a constant to `_WORKING_DIGITS` digits; None if it has none."""
    values = list(_evaluated((expression,)))
    return values[0][0] if values and values[0][0].is_real else None


def _evaluated(expressions: Sequence[sympy.Expr]) -> Iterator[tuple[sympy.Expr, ...]]:
    """Values of the expressions at points where all have one; points with real values only, if there are any."""
    unknowns = sorted(
        {symbol for expression in expressions for symbol in _unknowns(expression)}, key=lambda symbol: str(symbol)
    )
    complex_values: list[tuple[sympy.Expr, ...]] = []
    real = False
    for number in range(_POINTS if unknowns else 1):
        point = {unknown: _coordinate(number, index) for index, unknown in enumerate(unknowns)}
        values = tuple(_value(expression, point) for expression in expressions)
        if any(value is None for value in values):
            continue
        known = tuple(value for value in values if value is not None)
        if all(value.is_real for value in known):
            real = True
            yield known
        else:
            complex_values.append(known)
    if not real:
        yield from complex_values


def _unknowns(expression: sympy.Expr) -> set[sympy.Basic]:
    return set(expression.free_symbols) | set(expression.atoms(AppliedUndef))


def _coordinate(number: int, index: int) -> sympy.Expr:
    """Fixed, unlike one another, of both signs, large and small; positive first, as variables mostly are."""
    sign = -1 if number % 3 == 2 and (index + number) % 2 == 0 else 1
    return sympy.Rational(sign * (7 + 13 * index + 31 * number), 11 + 5 * index * number + 3 * index)


def _value(expression: sympy.Expr, point: dict[Any, Any]) -> sympy.Expr | None:
    """The number that the expression is at the point; None if it has no finite one."""
    try:
        value = expression.subs(point).evalf(_WORKING_DIGITS)
    except (ArithmeticError, TypeError, ValueError, AttributeError, NotImplementedError, RecursionError):
        return None  # sympy's way of saying that there is no value
    if not value.is_number or not value.is_finite or value.atoms(sympy.Symbol):
        return None
    real, imaginary = value.as_real_imag()
    return real if _is_zero(imaginary) or abs(imaginary) < abs(real) * _tolerance() else value


def _is_zero(value: sympy.Expr) -> bool:
    """A number of which no digit is certain is a zero that evaluation could not finish."""
    return value == 0 or (isinstance(value, sympy.Float) and value._prec == 1)


def _agree(first: sympy.Expr, second: sympy.Expr) -> bool:
    if _is_zero(first) or _is_zero(second):
        return _is_zero(first) and _is_zero(second)
    return bool(abs(first - second) <= _tolerance() * max(abs(first), abs(second)))


@functools.cache
def _tolerance() -> sympy.Expr:
    return sympy.Float(10, _WORKING_DIGITS) ** -_AGREEING_DIGITS


def _is_odd_root(node: Any) -> bool:
    return node.is_Pow and bool(node.base.is_negative and node.exp.is_Rational and node.exp.q % 2 and node.exp.q > 1)


def _real_root(power: Any) -> sympy.Expr:
    """The cube root of -8 is -2 here, as in school, and not the principal one."""
    return (-1) ** power.exp.p * (-power.base) ** power.exp


def _exact_decimal(number: re.Match[str]) -> str:
    digits = f"{number[1]}{number[2]}".lstrip("0") or "0"
    return f"(\\frac{{{digits}}}{{1{'0' * len(number[2])}}})"


def _exact_repeating(number: re.Match[str]) -> str:
    whole, fixed, period = number[1], number[2], number[3]
    over = int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}" or 0)
    return f"(\\frac{{{over}}}{{{'9' * len(period)}{'0' * len(fixed)}}})"


def _proper_mixed(number: re.Match[str]) -> str:
    if int(number[2]) >= int(number[3]):
        raise Unreadable(f"{number[0]} is neither a mixed number nor clearly a product")
    return f"({number[1]}+\\frac{{{number[2]}}}{{{number[3]}}})"


def _text_symbol(text: re.Match[str]) -> str:
    """Words inside an expression are one symbol, not a product of letters."""
    name = re.sub(r"[^A-Za-z]", "", text[1])
    return f"X_{{{name}}}" if name else ""
