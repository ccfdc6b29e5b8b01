"""Which trajectories: conditions such as `step=3..5`, and orders, on rows of the index.

Invariants:
- a trajectory is selected if it meets every condition; conditions on one field, given twice, must both hold;
- sorting is stable: equal rows stay in the order in which they were stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from actors.storage.index import IndexRow

NUMBERS: dict[str, Callable[[IndexRow], float]] = {
    "step": lambda row: row.step,
    "reward": lambda row: row.reward,
    "length": lambda row: row.response_tokens,
    "model_tokens": lambda row: row.model_tokens,
    "turns": lambda row: row.turns,
    "calls": lambda row: row.calls,
    "errors": lambda row: row.tool_errors,
    "sample": lambda row: row.sample,
}
"""Fields that are numbers: `N`, `A..B`, `A..` and `..B` select them. `length` is tokens after the prompt."""

TEXTS: dict[str, Callable[[IndexRow], tuple[str, ...]]] = {
    "id": lambda row: (row.id,),
    "group": lambda row: (row.group,),
    "stage": lambda row: (row.stage,),
    "problem": lambda row: (row.problem,),
    "family": lambda row: (row.family,),
    "verdict": lambda row: (row.reason,),
    "generator": lambda row: (row.generator,),
    "status": lambda row: (row.finish, *row.statuses),
}
"""Fields that are text: `A`, `A,B` (either) and patterns with `*` select them.

`status` is how the rollout ended, or how any of its calls did.
"""


class SelectionError(ValueError):
    """A condition or an order that makes no sense; the text says what would."""


type Condition = Callable[[IndexRow], bool]
"""Whether a row meets a condition."""


def parse_condition(text: str) -> Condition:
    """`FIELD=VALUE` as a condition. Raises `SelectionError` that names what is wrong with it."""
    field, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise SelectionError(f"{text!r} is no condition; write FIELD=VALUE, such as step=3..5 or status=timeout")
    if field in NUMBERS:
        low, high = _interval(field, value)
        number = NUMBERS[field]
        return lambda row: low <= number(row) <= high
    if field in TEXTS:
        patterns, texts = [each.strip() for each in value.split(",")], TEXTS[field]
        return lambda row: any(fnmatchcase(each, p) for each in texts(row) for p in patterns)
    raise SelectionError(f"there is no field {field!r} to select by; fields are {', '.join([*NUMBERS, *TEXTS])}")


def _interval(field: str, value: str) -> tuple[float, float]:
    first, dots, last = value.partition("..")
    try:
        low = float(first) if first else -math.inf
        high = (float(last) if last else math.inf) if dots else low
    except ValueError:
        raise SelectionError(f"{field}={value} is no number and no range; write {field}=3, 3..5, 3.. or ..5") from None
    if not low <= high or (not first and not last):
        raise SelectionError(f"{field}={value} selects nothing; write the smaller bound first, such as {field}=3..5")
    return low, high


def select(
    rows: Iterable[IndexRow], conditions: Sequence[Condition], sort: str | None = None, reverse: bool = False
) -> list[IndexRow]:
    """The rows that meet all conditions, sorted by a field (None: as they were stored), largest first if `reverse`.

    Raises `SelectionError` if there is no such field.
    """
    chosen = [row for row in rows if all(holds(row) for holds in conditions)]
    if sort is None:
        return chosen[::-1] if reverse else chosen
    key = NUMBERS.get(sort) or TEXTS.get(sort)
    if key is None:
        raise SelectionError(f"there is no field {sort!r} to sort by; fields are {', '.join([*NUMBERS, *TEXTS])}")
    return sorted(chosen, key=key, reverse=reverse)


class Page(NamedTuple):
    """A part of a selection."""

    number: int
    """From 1."""
    pages: int
    first: int
    """How many rows come before."""
    rows: list[IndexRow]


def page_of(rows: Sequence[IndexRow], number: int, size: int) -> Page:
    """Page `number` (from 1; beyond the last: the last) of `size` rows each."""
    pages = max(1, math.ceil(len(rows) / size))
    number = min(max(1, number), pages)
    first = (number - 1) * size
    return Page(number, pages, first, list(rows[first : first + size]))
