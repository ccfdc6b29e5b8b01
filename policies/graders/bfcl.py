"""Single-turn function calling as BFCL grades it: the calls of a response against the answers that are allowed.

Shapes are those of the Berkeley Function Calling Leaderboard, version 3 (github.com/ShishirPatil/gorilla): functions
with `parameters.properties` and `required`, and a ground truth of `{function: {argument: [allowed values]}}`, where
`""` among the allowed values means that the argument may be left out.

The comparison follows its published rules: names and argument sets must match, an integer may stand for a float, text
is compared without case, spaces and the punctuation `,./-_*^`, and parallel calls may come in any order. Calls are
JSON in `<tool_call>` tags, which is this project's form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from policies.tool_calls import call_blocks

_LOOSE = re.compile(r"[ ,./\-_*^]")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "float": (float, int),
    "number": (float, int),
    "boolean": (bool,),
    "array": (list,),
    "tuple": (list,),
    "dict": (dict,),
    "object": (dict,),
}


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Grade(NamedTuple):
    """Whether a response is right, and the first thing that is wrong with it."""

    correct: bool
    reason: str


class Unreadable(ValueError):
    """A response with something in call tags that is no call."""


def calls_of(response: str) -> list[Call]:
    """All calls of a response. Raises `Unreadable`."""
    calls = []
    for raw, _ in call_blocks(response):
        try:
            call = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"a call is not valid JSON: {error}") from error
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
            raise Unreadable("a call is no object with a name and arguments")
        calls.append(Call(call["name"], arguments))
    return calls


def grade(
    response: str, functions: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]] | None, category: str
) -> Grade:
    """Grade one response.

    Args:
        truth: the allowed calls; None in the categories of (ir)relevance, where it counts whether there is a call.
        category: BFCL's, such as `live_parallel`.
    """
    try:
        calls = calls_of(response)
    except Unreadable as error:
        return Grade(category.endswith("irrelevance"), str(error))  # as BFCL has it: what can't be read is no call
    if category.endswith("irrelevance"):
        return Grade(not calls, "a function was called, and none fits" if calls else "")
    if category.endswith("relevance"):
        return Grade(bool(calls), "" if calls else "no function was called")
    assert truth is not None, f"{category} needs the allowed calls"
    if len(calls) != len(truth):
        return Grade(False, f"{len(calls)} calls, {len(truth)} wanted")
    return _matched(calls, {function["name"]: function for function in functions}, list(truth))


def _matched(calls: list[Call], functions: dict[str, Mapping[str, Any]], truth: list[Mapping[str, Any]]) -> Grade:
    """Each wanted call takes the first call left that satisfies it."""
    left = list(calls)
    for wanted in truth:
        reasons = [_difference(call, functions, wanted) for call in left]
        if "" not in reasons:
            return Grade(False, reasons[0])
        del left[reasons.index("")]
    return Grade(True, "")


def _difference(call: Call, functions: dict[str, Mapping[str, Any]], wanted: Mapping[str, Any]) -> str:
    """The first difference between a call and what is allowed; empty if there is none."""
    (name, allowed), *_ = wanted.items()
    if call.name != name:
        return f"calls {call.name!r} instead of {name!r}"
    parameters = functions[name]["parameters"]
    missing = [each for each in parameters.get("required", ()) if each not in call.arguments]
    if missing:
        return f"required argument {missing[0]!r} is missing"
    for argument, value in call.arguments.items():
        if argument not in allowed or argument not in parameters["properties"]:
            return f"unexpected argument {argument!r}"
        description = parameters["properties"][argument]
        if not _of_type(value, description) and type(value) is not _first_type(allowed[argument]):
            return f"argument {argument!r} has the wrong type: {value!r:.60}"
        if not any(_same(value, each) for each in allowed[argument]):
            return f"argument {argument!r} is {value!r:.60}"
    for argument, values in allowed.items():
        if argument not in call.arguments and "" not in values:
            return f"argument {argument!r} is missing"
    return ""


def _first_type(allowed: Sequence[Any]) -> type | None:
    """The type of the first allowed value: where it is not the described one (a variable's name), it counts instead."""
    return next((type(each) for each in allowed if each != ""), None)


def _of_type(value: Any, description: Mapping[str, Any]) -> bool:
    wanted = _TYPES.get(description.get("type", ""), (object,))
    if isinstance(value, bool):
        return bool in wanted or object in wanted
    if not isinstance(value, wanted):
        return False
    items = description.get("items")
    return not isinstance(value, list) or not isinstance(items, Mapping) or all(_of_type(each, items) for each in value)


def _same(value: Any, allowed: Any) -> bool:
    if isinstance(value, str) and isinstance(allowed, str):
        return loose(value) == loose(allowed)
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    if isinstance(value, list) and isinstance(allowed, list):
        return len(value) == len(allowed) and all(map(_same, value, allowed))
    if isinstance(value, dict) and isinstance(allowed, dict):
        # Inside, each argument again has a list of allowed values.
        return all(
            key in allowed and any(_same(each, one) for one in _many(allowed[key])) for key, each in value.items()
        ) and all(key in value or "" in _many(values) for key, values in allowed.items())
    return value == allowed


def _many(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def loose(text: str) -> str:
    """Text as BFCL compares it."""
    return _LOOSE.sub("", text).lower().replace("'", '"')
