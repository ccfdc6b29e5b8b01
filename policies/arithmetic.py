"""The quickstart's problems: families of integer arithmetic and small word problems, made from a seed.

The numbers are big enough that a small model can't work the results out in its head: only running code helps.

Invariants:
- `make_problem(seed, index, ...)` depends on its arguments only, so any position of the stream can be sought;
- operands from held-out ranges (`is_held_out`) appear in evaluation problems only, and evaluation problems have no
  other operands.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from string import Formatter

from policies.trajectory import Problem


def is_held_out(number: int) -> bool:
    """Whether a number lies in one of the ranges that training never shows.

    The first three digits name a range (1230 to 1239, say, or 123000 to 123999); every ninth range is held out.
    """
    return int(str(number)[:3]) % 9 == 4


def _is_evaluated(expression: str) -> bool:
    """Whether it is of whole numbers, brackets and the operators that make whole numbers of them."""
    return set(expression) <= set("0123456789+-*/%() ") and "/" not in expression.replace("//", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One kind of problem. Texts and expressions are format strings over the operands a, b, c.

    Raises `ValueError` for an operand without digits, and for an expression that `evaluate` does not take.
    """

    name: str
    level: int
    """What stages choose by. 1: two operands, 2: three operands or larger results."""
    digits: dict[str, int]
    """Operand -> how many digits it has."""
    wording: str
    expression: str
    """Python for the right answer, a whole number: operands, whole numbers, brackets and `+ - * // % **`."""
    mistaken: str
    """Python for the answer that a sloppy solver gives."""
    mistaken_share: float
    """How often demonstrations make that mistake."""

    def __post_init__(self) -> None:
        for text in (self.wording, self.expression, self.mistaken):
            unknown = {field for _, field, _, _ in Formatter().parse(text) if field is not None} - self.digits.keys()
            if unknown:
                raise ValueError(f"family {self.name!r}: {text!r} has {sorted(unknown)}, whose `digits` are not given")
        for text in (self.expression, self.mistaken):
            example = text.format(**dict.fromkeys(self.digits, 1))
            if not _is_evaluated(example):
                raise ValueError(
                    f"family {self.name!r}: {text!r} is more than operands, whole numbers, brackets and + - * // % **; "
                    "write it with these, or make the problems beforehand and train on the file (docs/extending.md)"
                )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="product",
        level=1,
        digits={"a": 4, "b": 4},
        wording="What is {a} times {b}?",
        expression="{a} * {b}",
        mistaken="{a} + {b}",
        mistaken_share=0.45,
    ),
    Family(
        name="remainder",
        level=1,
        digits={"a": 6, "b": 4},
        wording="What is the remainder when {a} is divided by {b}?",
        expression="{a} % {b}",
        mistaken="{a} // {b}",
        mistaken_share=0.6,
    ),
    Family(
        name="crates",
        level=1,
        digits={"a": 4, "b": 4},
        wording="A store has {a} crates with {b} nails each. How many nails are there?",
        expression="{a} * {b}",
        mistaken="{a} + {b}",
        mistaken_share=0.6,
    ),
    Family(
        name="square_plus",
        level=1,
        digits={"a": 4, "b": 4},
        wording="What is the square of {a}, plus {b}?",
        expression="{a} ** 2 + {b}",
        mistaken="{a} * 2 + {b}",
        mistaken_share=0.45,
    ),
    Family(
        name="mill",
        level=2,
        digits={"a": 4, "b": 4, "c": 4},
        wording="A mill fills {a} sacks of {b} grams and sells {c} grams. How many grams are left?",
        expression="{a} * {b} - {c}",
        mistaken="{a} * {b} + {c}",
        mistaken_share=0.6,
    ),
    Family(
        name="wages",
        level=2,
        digits={"a": 4, "b": 4, "c": 4},
        wording="A crew works {a} hours and then {b} hours at {c} coins an hour. How many coins does it earn?",
        expression="({a} + {b}) * {c}",
        mistaken="{a} + {b} * {c}",
        mistaken_share=0.45,
    ),
    Family(
        name="modular_product",
        level=2,
        digits={"a": 4, "b": 4, "c": 4},
        wording="What is the remainder when {a} times {b} is divided by {c}?",
        expression="{a} * {b} % {c}",
        mistaken="{a} * {b} // {c}",
        mistaken_share=0.6,
    ),
    Family(
        name="square_gap",
        level=2,
        digits={"a": 4, "b": 4},
        wording="By how much is the square of {a} larger than the square of {b}?",
        expression="{a} ** 2 - {b} ** 2",
        mistaken="({a} - {b}) ** 2",
        mistaken_share=0.45,
    ),
)


LEVELS = tuple(sorted({family.level for family in FAMILIES}))
assert len({family.name for family in FAMILIES}) == len(FAMILIES), "two families have one name"


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem together with how it is solved, rightly and sloppily (demonstrations need both)."""

    problem: Problem
    expression: str
    mistaken: str
    mistaken_share: float


def make_problem(seed: int, index: int, *, levels: tuple[int, ...], held_out: bool) -> Posed:
    """Problem number `index` of the stream of `seed`.

    Args:
        levels: levels to draw families from.
        held_out: whether it is for evaluation (held-out operands only) or for training (none of them).

    Raises `ValueError` if one of `levels` has no family.
    """
    check_levels(levels)
    families = [family for family in FAMILIES if family.level in levels]
    name = f"{seed}/{'evaluation' if held_out else 'training'}/{','.join(map(str, levels))}/{index}"
    rng = random.Random(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
    family = rng.choice(families)
    operands = {operand: _number(rng, digits, held_out) for operand, digits in family.digits.items()}
    expression = family.expression.format(**operands)
    question = family.wording.format(**operands)
    return Posed(
        problem=Problem(id=f"arithmetic/{name}", question=question, gold=str(evaluate(expression)), family=family.name),
        expression=expression,
        mistaken=family.mistaken.format(**operands),
        mistaken_share=family.mistaken_share,
    )


def check_levels(levels: tuple[int, ...]) -> None:
    """Raise `ValueError` if one of `levels` has no family."""
    for level in levels:
        if level not in LEVELS:
            raise ValueError(f"no family of arithmetic problems has level {level}; levels are {list(LEVELS)}")


def evaluate(expression: str) -> int:
    """The value of an expression made here (digits, operators and brackets, nothing else)."""
    assert _is_evaluated(expression), f"not one of our expressions: {expression!r}"
    return eval(expression)


def _number(rng: random.Random, digits: int, held_out: bool) -> int:
    while True:
        number = rng.randrange(10 ** (digits - 1), 10**digits)
        if is_held_out(number) == held_out:
            return number
