"""Telling a call that never prints the same twice from one that the sandbox now answers differently.

Invariants:
- a call is taken for non-deterministic only on evidence: two executions in the same sandbox differ, or what differs is
  of a kind that no two executions share (addresses, times, unique ids, temporary names), or the program reads the clock
  and nothing but numbers differ;
- a seeded generator of random numbers is no evidence: it prints the same twice, so another stream is a difference.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from env.tool_call import ToolResult

Cause = Literal["two executions differ", "addresses", "times", "unique ids", "temporary names", "clock", "order"]

PATTERNS: dict[Cause, re.Pattern[str]] = {
    "unique ids": re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE),
    "addresses": re.compile(r"\b0x[0-9a-f]{6,16}\b", re.IGNORECASE),
    "times": re.compile(
        r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?\b|\b\d{1,2}:\d{2}:\d{2}(?:\.\d+)?\b"
    ),
    "temporary names": re.compile(r"/tmp/tmp[0-9a-z_]{8}\b"),
}
"""What to put in the place of texts that are never the same twice, in the order in which they are tried."""

CLOCK_MODULES = frozenset({"time", "datetime", "calendar"})
UNORDERED = frozenset({"set", "frozenset", "listdir", "scandir", "glob", "iglob", "iterdir", "rglob", "walk"})
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def outputs(result: ToolResult) -> tuple[str, str]:
    """What the program wrote: standard output and standard error."""
    return result.stdout, result.stderr


def cause_of_difference(code: str, stored: ToolResult, first: ToolResult, second: ToolResult) -> Cause | None:
    """Why `stored` and `first` differ, if that is by chance; None if it is not, as far as can be told.

    Args:
        first, second: two executions in the same sandbox.
    """
    if outputs(first) != outputs(second):
        return "two executions differ"
    old, new = "\0".join(outputs(stored)), "\0".join(outputs(first))
    for cause, pattern in PATTERNS.items():
        old, new = pattern.sub(f"<{cause}>", old), pattern.sub(f"<{cause}>", new)
        if old == new:
            return cause
    names = names_in(code)
    if names & CLOCK_MODULES and _NUMBER.sub("0", old) == _NUMBER.sub("0", new):
        return "clock"
    if names & UNORDERED and sorted(_words(old)) == sorted(_words(new)):
        return "order"
    return None


def names_in(code: str) -> set[str]:
    """Names that a program mentions: variables, attributes, imported modules, and `set` for a set display."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return set(re.findall(r"[A-Za-z_]\w*", code))
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name):
                found.add(name)
            case ast.Attribute(attr=name):
                found.add(name)
            case ast.Import(names=aliases):
                found |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases):
                found |= {module.partition(".")[0], *(alias.name for alias in aliases)}
            case ast.Set() | ast.SetComp():
                found.add("set")
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)
