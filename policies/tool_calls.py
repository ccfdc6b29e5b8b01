"""Tool calls as text: how a model writes them, and how results are shown to it.

A call is one JSON object with `name` and `arguments` inside `<tool_call>` tags; a turn may hold several.
Whatever is wrong with a call becomes a result that says so: a bad call is data, not a crash. Nothing that
the model reads depends on the wall clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, TOOLS, Limits, ToolCall, ToolName, ToolResult

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(OPEN) + r"(.*?)(?:" + re.escape(CLOSE) + r"|\Z)", re.DOTALL)


def _schema(name: ToolName, description: str, **arguments: str) -> dict[str, Any]:
    assert arguments.keys() <= {"code", "input"}, f"{name}: what a sandbox takes of a call are `code` and `input`"
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS: dict[ToolName, dict[str, Any]] = {
    PYTHON_TOOL: _schema(
        PYTHON_TOOL,
        "Run a Python program and return what it writes. The last expression's value is shown too.",
        code="The program.",
        input="What the program can read from standard input.",
    ),
    JUPYTER_TOOL: _schema(
        JUPYTER_TOOL,
        "Run a cell of a Python notebook and return what it writes. Names stay defined for later cells; the last "
        "expression's value is shown too.",
        code="The cell.",
    ),
}
"""Each tool as chat templates expect it (JSON schema); all of its arguments are required strings."""
assert SCHEMAS.keys() == set(TOOLS), "ToolName and SCHEMAS must name the same tools"


def written_call(name: str, arguments: dict[str, Any]) -> str:
    """A call as a model writes it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def call_blocks(turn: str) -> list[tuple[str, bool]]:
    """What stands between the tags of each call of a model turn, in order, and whether it is closed."""
    return [(match[1].strip(), match[0].endswith(CLOSE)) for match in _CALL.finditer(turn)]


def schemas_of(tools: Sequence[ToolName]) -> list[dict[str, Any]]:
    """The tools that a model is told of."""
    return [SCHEMAS[name] for name in tools]


class RequestedCall(NamedTuple):
    """A call as the model asked for it. `refusal` is set when it can't be run as it stands."""

    call: ToolCall
    refusal: str = ""

    def refused(self) -> ToolResult:
        """The result of a call that was not run."""
        return ToolResult(id=self.call.id, status="invalid_call", reason=self.refusal)


def parse_calls(
    turn: str, id_prefix: str, limits: Limits, tools: Sequence[ToolName] = (PYTHON_TOOL,), session: str = ""
) -> list[RequestedCall]:
    """All calls of a model turn, in order; ids are `id_prefix/0`, `id_prefix/1`, ...

    `tools` are those that there are, `session` is what cells belong to.
    """
    calls = []
    for index, (raw, closed) in enumerate(call_blocks(turn)):
        call = ToolCall(id=f"{id_prefix}/{index}", code=raw, limits=limits)
        if not closed:
            calls.append(RequestedCall(call=call, refusal=f"the call is not closed: end it with {CLOSE}"))
            continue
        tool, arguments, refusal = _read(raw, tools)
        if not refusal:
            belongs = {"session": session} if tool == JUPYTER_TOOL else {}
            call = ToolCall(id=call.id, tool=tool, limits=limits, **belongs, **arguments)
        calls.append(RequestedCall(call=call, refusal=refusal))
    return calls


def _read(raw: str, tools: Sequence[ToolName]) -> tuple[str, dict[str, str], str]:
    """The tool and the arguments of a call, or (last) why it is refused."""
    try:
        request = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return "", {}, f"the call is not valid JSON: {error}"
    if not isinstance(request, dict):
        return "", {}, f"the call must be a JSON object with name and arguments, not {type(request).__name__}"
    tool: ToolName | None = next((tool for tool in tools if tool == request.get("name")), None)
    if tool is None:
        known = f"the only tool is {tools[0]}" if len(tools) == 1 else f"the tools are {' and '.join(tools)}"
        return "", {}, f"unknown tool {request.get('name')!r}; {known}"
    arguments, refusal = _arguments(tool, request.get("arguments"))
    return tool, arguments, refusal


def _arguments(tool: ToolName, arguments: object) -> tuple[dict[str, str], str]:
    """The arguments of a call of `tool`, or why it is refused."""
    if not isinstance(arguments, dict):
        return {}, "arguments must be a JSON object"
    wanted = SCHEMAS[tool]["function"]["parameters"]["required"]
    if set(arguments) != set(wanted) or not all(isinstance(text, str) for text in arguments.values()):
        takes = {1: "one string", 2: "two strings"}[len(wanted)]
        # as text that can be told: JSON's names may hold lone surrogates, which neither tokenizers nor archives take
        got = ", ".join(arguments).encode(errors="backslashreplace").decode() or "nothing"
        return {}, f"{tool} takes {takes}, {' and '.join(wanted)}; got {got}"
    if any("\ud800" <= character <= "\udfff" for character in "".join(arguments.values())):
        return {}, f"{' and '.join(wanted)} must be valid Unicode text (no lone surrogates)"
    return arguments, ""


def shorten(text: str, limit: int) -> str:
    """`text` cut in the middle to at most `limit` characters, with a mark where something is missing."""
    if len(text) <= limit:
        return text
    mark = "\n...\n"
    head = max(0, (limit - len(mark)) // 2)
    tail = max(0, limit - len(mark) - head)
    return text[:head] + mark + (text[-tail:] if tail else "")


def result_text(result: ToolResult, limit: int) -> str:
    """What the model reads of a result: status, the reason if it failed, then the streams that are not empty."""
    lines = ["ok" if result.status == "success" else result.status]
    if result.reason and result.status not in ("success", "error"):
        lines.append(result.reason)  # of an error the traceback tells more
    if result.session_ended:
        lines.append("This cell ended the session's process: the next one starts without it.")
    if result.restarted:
        again = f"{result.replayed} earlier {'cell was' if result.replayed == 1 else 'cells were'} run again"
        lines.append(f"The session's process was lost and made anew: {again} before this one.")
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        if stream:
            lines.append(f"{name}:\n{shorten(stream.rstrip(), limit)}")
    return "\n".join(lines)
