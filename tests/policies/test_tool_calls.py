"""Calls as models write them, and results as they read them, for each tool."""

from __future__ import annotations

import json

import pytest

from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, Limits, ToolName, ToolResult
from policies.tool_calls import SCHEMAS, parse_calls, result_text, schemas_of


def written(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_cell_belongs_to_the_session_and_a_program_to_none():
    turn = written(JUPYTER_TOOL, code="x") + written(PYTHON_TOOL, code="y", input="z")
    cell, program = parse_calls(turn, "t/0", Limits(), (PYTHON_TOOL, JUPYTER_TOOL), session="t")
    assert (cell.refusal, program.refusal) == ("", "")
    assert (cell.call.tool, cell.call.code, cell.call.session) == (JUPYTER_TOOL, "x", "t")
    assert (program.call.tool, program.call.code, program.call.input, program.call.session) == (
        PYTHON_TOOL,
        "y",
        "z",
        "",
    )


@pytest.mark.parametrize(
    ("tools", "call", "refusal"),
    [
        (
            (PYTHON_TOOL,),
            written(JUPYTER_TOOL, code="x"),
            f"unknown tool 'jupyter_code'; the only tool is {PYTHON_TOOL}",
        ),
        (
            (PYTHON_TOOL, JUPYTER_TOOL),
            written("rm", code="x"),
            f"unknown tool 'rm'; the tools are {PYTHON_TOOL} and {JUPYTER_TOOL}",
        ),
        (
            (JUPYTER_TOOL,),
            written(JUPYTER_TOOL, code="x", input=""),
            "jupyter_code takes one string, code; got code, input",
        ),
        ((JUPYTER_TOOL,), written(JUPYTER_TOOL), "jupyter_code takes one string, code; got nothing"),
        ((PYTHON_TOOL,), written(PYTHON_TOOL, code="x"), f"{PYTHON_TOOL} takes two strings, code and input; got code"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_for_its_tool(tools: tuple[ToolName, ...], call: str, refusal: str):
    (request,) = parse_calls(call, "t/0", Limits(), tools, session="t")
    assert request.refusal == refusal
    assert request.refused().status == "invalid_call"


def test_models_are_told_of_the_tools_that_there_are():
    assert [each["function"]["name"] for each in schemas_of((JUPYTER_TOOL, PYTHON_TOOL))] == [JUPYTER_TOOL, PYTHON_TOOL]
    assert schemas_of(()) == []
    for name, schema in SCHEMAS.items():
        assert schema["function"]["name"] == name
        assert set(schema["function"]["parameters"]["properties"]) >= {"code"}


def test_a_model_reads_that_its_session_was_lost_or_rebuilt():
    ended = ToolResult(id="1", status="timeout", reason="The program ran too long.", session_ended=True)
    assert result_text(ended, 100).splitlines() == [
        "timeout",
        "The program ran too long.",
        "This cell ended the session's process: the next one starts without it.",
    ]
    for count, again in ((0, "0 earlier cells were"), (1, "1 earlier cell was"), (3, "3 earlier cells were")):
        rebuilt = ToolResult(id="2", status="success", stdout="5\n", restarted=True, replayed=count)
        assert result_text(rebuilt, 100).splitlines() == [
            "ok",
            f"The session's process was lost and made anew: {again} run again before this one.",
            "stdout:",
            "5",
        ]
    assert "session" not in result_text(ToolResult(id="3", status="success", stdout="5\n"), 100)


def test_a_refusal_holds_nothing_that_can_not_be_told():
    (request,) = parse_calls(written(JUPYTER_TOOL, **{"\ud800": "x"}), "t/0", Limits(), (JUPYTER_TOOL,), session="t")
    assert request.refusal == "jupyter_code takes one string, code; got \\ud800"
    assert request.refused().model_dump_json()
