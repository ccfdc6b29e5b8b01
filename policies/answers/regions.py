"""Sets of real numbers: intervals, unions, inequalities, builder notation; read as sympy's sets, compared exactly."""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
from sympy.core.relational import Relational

from policies.answers.expressions import approximate, equal_expressions, parse_expression
from policies.answers.notation import Unreadable, closes, unwrapped
from policies.answers.structure import is_name, is_relation, plus_or_minus, sides, split_keeping, split_top

_INTERVAL = re.compile(r"([(\[\]])(.*)([)\]\[])", re.DOTALL)
_BUILDER = re.compile(r"\\\{(.*?)(?:\\mid(?![A-Za-z])|\||:)(.*)\\\}", re.DOTALL)
_MEMBER = r" ?\\in(?![A-Za-z]) ?"
_UNION = r" ?\\cup(?![A-Za-z]) ?| or | ?\\lor(?![A-Za-z]) ?"
_INTERSECTION = r" ?\\cap(?![A-Za-z]) ?| and | ?\\land(?![A-Za-z]) ?|, "
_DIFFERENCE = r" ?\\setminus(?![A-Za-z]) ?|(?<=\})-(?=\\\{)"
_OPERATOR = r"<|>|=|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])"
_RELATIONS = {"<": sympy.Lt, ">": sympy.Gt, "\\le": sympy.Le, "\\ge": sympy.Ge, "\\ne": sympy.Ne, "=": sympy.Eq}


class Region:
    """A set of reals, with the name of its variable if it was written with one."""

    def __init__(self, members: sympy.Set, variable: str = "") -> None:
        self.members, self.variable = members, variable

    def same_as(self, other: Region) -> bool:
        """Whether both are the same set; if both name a variable, it must be the same."""
        if self.variable and other.variable and self.variable != other.variable:
            return False
        return _same_set(self.members, other.members)


def looks_like_region(text: str) -> bool:
    """Whether `text` can mean nothing but a set of reals (an interval `(a, b)` may also be a point)."""
    if is_relation(text) or _BUILDER.fullmatch(text):
        return True
    if any(command in text for command in ("\\cup", "\\cap", "\\setminus", "\\mathbb{R}")):
        return True
    found = _INTERVAL.fullmatch(text)
    return bool(found) and (text[0] != "(" or text[-1] != ")" or "\\infty" in text) and "," in text


def read_region(text: str) -> Region:
    """Raises `Unreadable` if `text` is no set of reals."""
    built = _BUILDER.fullmatch(text)
    if built:
        element, condition = unwrapped(built[1]), unwrapped(built[2])
        region = read_region(condition)
        name = unwrapped(split_top(element, _MEMBER)[0])
        if region.variable not in ("", name):
            raise Unreadable(f"{text!r} is built from {name}, but bounds {region.variable}")
        return Region(region.members)
    member = split_top(text, _MEMBER)
    if len(member) == 2 and is_name(unwrapped(member[0])) and not is_relation(member[0]):
        return Region(read_region(unwrapped(member[1])).members, unwrapped(member[0]))
    for separator, combine in ((_UNION, sympy.Union), (_INTERSECTION, sympy.Intersection)):
        parts = split_top(text, separator)
        if len(parts) > 1:
            regions = [read_region(unwrapped(part)) for part in parts]
            names = {region.variable for region in regions if region.variable}
            if len(names) > 1:
                raise Unreadable(f"{text!r} bounds several variables: {', '.join(sorted(names))}")
            return Region(combine(*(region.members for region in regions)), names.pop() if names else "")
    parts = split_top(text, _DIFFERENCE)
    if len(parts) == 2:
        whole, without = (read_region(unwrapped(part)) for part in parts)
        return Region(sympy.Complement(whole.members, without.members))
    return _read_simple(text)


def _read_simple(text: str) -> Region:
    if text == "\\mathbb{R}":
        return Region(sympy.S.Reals)
    if text == "\\emptyset":
        return Region(sympy.S.EmptySet)
    if text.startswith("\\{") and text.endswith("\\}"):
        return Region(sympy.FiniteSet(*(parse_expression(unwrapped(item)) for item in split_top(text[2:-2], ","))))
    found = _INTERVAL.fullmatch(text)
    if found and (text[0] == "]" or text[-1] == "[" or closes(text, 0) == len(text) - 1):
        ends = [unwrapped(end) for end in split_top(found[2], "[,;]")]
        if len(ends) == 2:
            low, high = map(parse_expression, ends)
            return Region(sympy.Interval(low, high, found[1] != "[", found[3] != "]"))
    if is_relation(text) or len(sides(text)) == 2:
        return _read_relation(text)
    raise Unreadable(f"{text!r} is no set of reals")


def _read_relation(text: str) -> Region:
    terms, operators = split_keeping(text, _OPERATOR)
    for term in terms:
        if len(plus_or_minus(term)) > 1:
            raise Unreadable(f"{term!r} has two readings")
    values = [parse_expression(unwrapped(term)) for term in terms]
    variable = _variable(values)
    region: sympy.Set = sympy.S.Reals
    for left, operator, right in zip(values, operators, values[1:], strict=False):
        region = sympy.Intersection(region, _solve(left, operator, right, variable))
    if len(values) == 3 and values[1] == variable:
        region = _chain(values, operators) or region
    return Region(region, str(variable))


def _variable(values: list[sympy.Expr]) -> sympy.Symbol:
    """The unknown: the only letter, or the middle of `a < x < b`, or the term that is a letter alone."""
    letters: list[Any] = sorted({symbol for value in values for symbol in value.free_symbols}, key=str)
    alone = [value for value in values if isinstance(value, sympy.Symbol)]
    middle = [value for value in values[1:2] if len(values) == 3 and isinstance(value, sympy.Symbol)]
    for candidates in (letters, middle, alone):
        if len(candidates) == 1:
            return candidates[0]
    raise Unreadable(f"which of {', '.join(map(str, letters)) or 'no letters'} is the variable is unclear")


def _chain(values: list[sympy.Expr], operators: list[str]) -> sympy.Set | None:
    """`a < x <= b` as an interval whose ends may be letters."""
    low, _, high = values
    first, second = operators
    if first in (">", "\\ge") and second in (">", "\\ge"):
        low, high, first, second = high, low, second.replace(">", "<"), first.replace(">", "<")
        first, second = first.replace("ge", "le"), second.replace("ge", "le")
    if first in ("<", "\\le") and second in ("<", "\\le"):
        return sympy.Interval(low, high, first == "<", second == "<")
    return None


def _solve(left: sympy.Expr, operator: str, right: sympy.Expr, variable: sympy.Symbol) -> sympy.Set:
    if right == variable and not left.has(variable):
        left, right, operator = right, left, _flipped(operator)
    if left == variable and not right.has(variable):
        ends = {
            "<": lambda: sympy.Interval.open(-sympy.oo, right),
            "\\le": lambda: sympy.Interval(-sympy.oo, right),
            ">": lambda: sympy.Interval.open(right, sympy.oo),
            "\\ge": lambda: sympy.Interval(right, sympy.oo),
            "=": lambda: sympy.FiniteSet(right),
            "\\ne": lambda: sympy.Complement(sympy.S.Reals, sympy.FiniteSet(right)),
        }
        return ends[operator]()
    try:
        relation = _RELATIONS[operator](left, right)
        if not isinstance(relation, Relational):
            raise Unreadable(f"{left} {operator} {right} is no condition on {variable}")
        return relation.as_set()
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{left} {operator} {right} can't be solved: {error}") from error


def _flipped(operator: str) -> str:
    return {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(operator, operator)


def _same_set(first: Any, second: Any) -> bool:
    if first == second:
        return True
    if type(first) is not type(second):
        return False
    if first.is_Interval:
        return (
            (first.left_open, first.right_open) == (second.left_open, second.right_open)
            and equal_expressions(first.start, second.start)
            and equal_expressions(first.end, second.end)
        )
    if len(first.args) != len(second.args):
        return False
    if first.is_FiniteSet:
        return all(any(equal_expressions(one, other) for other in second.args) for one in first.args)
    if first.is_Union:
        pairs = zip(sorted(first.args, key=_place), sorted(second.args, key=_place), strict=True)
        return all(_same_set(one, other) for one, other in pairs)
    return False


@functools.cache
def _place(part: sympy.Set) -> tuple[float, str]:
    """Parts of a union in the order of the line."""
    start = part.inf
    value = start if start.is_infinite else approximate(start)
    return (float(value) if value is not None else 0.0, str(type(part)))
