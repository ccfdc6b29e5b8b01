"""Calls against the answers that are allowed, rule by rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.graders.bfcl import grade

FUNCTIONS = [
    {
        "name": "area",
        "description": "",
        "parameters": {
            "type": "dict",
            "properties": {
                "base": {"type": "integer"},
                "height": {"type": "float"},
                "unit": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "place": {"type": "dict"},
                "exact": {"type": "boolean"},
            },
            "required": ["base", "height"],
        },
    },
    {"name": "hello", "description": "", "parameters": {"type": "dict", "properties": {}, "required": []}},
]
TRUTH = [{"area": {"base": [10], "height": [5.0, 5], "unit": ["square cm", ""]}}]


def said(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )


def right(response: str, truth: list[dict[str, Any]] | None = TRUTH, category: str = "simple") -> bool:
    return grade(response, FUNCTIONS, truth, category).correct


@pytest.mark.parametrize(
    ("arguments", "correct"),
    [
        ({"base": 10, "height": 5}, True),  # an integer stands for a float, and what may be left out is
        ({"base": 10, "height": 5.0, "unit": "Square-CM"}, True),
        ({"base": 10.0, "height": 5}, False),  # a float does not stand for an integer
        ({"base": "10", "height": 5}, False),
        ({"base": True, "height": 5}, False),
        ({"base": 10}, False),
        ({"base": 10, "height": 6}, False),
        ({"base": 10, "height": 5, "unit": "inch"}, False),
        ({"base": 10, "height": 5, "colour": "red"}, False),
    ],
)
def test_arguments_are_compared_by_type_and_value(arguments: dict[str, Any], correct: bool) -> None:
    assert right(said(("area", arguments))) is correct


def test_the_name_of_a_variable_stands_for_a_value_where_it_is_allowed() -> None:
    truth = [{"area": {"base": ["", "width"], "height": [5]}}]
    assert right(said(("area", {"base": "width", "height": 5})), truth)
    assert not right(said(("area", {"base": "depth", "height": 5})), truth)
    assert not right(said(("area", {"base": "width", "height": 5})), [{"area": {"base": [1], "height": [5]}}])


def test_lists_dicts_and_truth_values() -> None:
    def truth(**more: list[Any]) -> list[dict[str, Any]]:
        return [{"area": {"base": [1], "height": [1], **more}}]

    base = {"base": 1, "height": 1}
    assert right(said(("area", base | {"tags": ["A b", "c"]})), truth(tags=[["ab", "C"]]))
    assert not right(said(("area", base | {"tags": ["c", "ab"]})), truth(tags=[["ab", "c"]]))
    assert right(
        said(("area", base | {"place": {"city": "Bonn"}})), truth(place=[{"city": ["Bonn"], "zip": ["", "1"]}])
    )
    assert not right(said(("area", base | {"place": {"zip": "1"}})), truth(place=[{"city": ["Bonn"], "zip": ["1"]}]))
    assert right(said(("area", base | {"exact": True})), truth(exact=[True]))
    assert not right(said(("area", base | {"exact": 1})), truth(exact=[True]))


def test_the_function_and_the_number_of_calls_must_match() -> None:
    assert not right(said(("hello", {})))
    assert not right("The area is 25.")
    assert not right(said(("area", {"base": 10, "height": 5}), ("hello", {})))
    assert not right("<tool_call>{area: 10}</tool_call>")


def test_parallel_calls_come_in_any_order() -> None:
    truth = [*TRUTH, {"hello": {}}]
    calls = [("area", {"base": 10, "height": 5}), ("hello", {})]
    assert right(said(*calls), truth, "parallel") and right(said(*reversed(calls)), truth, "parallel")
    assert not right(said(calls[0], calls[0]), truth, "parallel")


def test_relevance_is_whether_anything_is_called() -> None:
    call = said(("hello", {}))
    assert right("None fits.", None, "irrelevance") and not right(call, None, "live_irrelevance")
    assert right(call, None, "live_relevance") and not right("None fits.", None, "live_relevance")
