"""Tool calls as text: how a model writes them, and how results are shown to it.

A call is one JSON object with `name` and `arguments` inside `<tool_call>` tags; a turn may hold several.
Whatever is wrong with a call becomes a result that says so: a bad call is data, not a crash. Nothing that
the model reads depends on the wall clock.
"""

from __future__ import annotations

import json
import re
from typing import Any

from env.tool_call import PYTHON_TOOL, Limits, ToolCall, ToolResult
from policies.trajectory import Record

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(OPEN) + r"(.*?)(?:" + re.escape(CLOSE) + r"|\Z)", re.DOTALL)

TOOL_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": PYTHON_TOOL,
            "description": "Run a Python program and return what it writes. The last expression's value is shown too.",
            "parameters": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "The program."},
                    "input": {"type": "string", "description": "What the program can read from standard input."},
                },
                "required": ["code", "input"],
            },
        },
    }
]
"""The tools as chat templates expect them (JSON schema)."""


class RequestedCall(Record):
    """A call as the model asked for it. `refusal` is set when it can't be run as it stands."""

    call: ToolCall
    refusal: str = ""

    def refused(self) -> ToolResult:
        """The result of a call that was not run."""
        return ToolResult(id=self.call.id, status="invalid_call", reason=self.refusal)


def parse_calls(turn: str, id_prefix: str, limits: Limits) -> list[RequestedCall]:
    """All calls of a model turn, in order; ids are `id_prefix/0`, `id_prefix/1`, ..."""
    calls = []
    for index, match in enumerate(_CALL.finditer(turn)):
        call_id, raw = f"{id_prefix}/{index}", match.group(1).strip()
        closed = match.group(0).endswith(CLOSE)
        arguments, refusal = _arguments(raw) if closed else ({}, f"the call is not closed: end it with {CLOSE}")
        code, text = (arguments["code"], arguments["input"]) if not refusal else (raw, "")
        calls.append(RequestedCall(call=ToolCall(id=call_id, code=code, input=text, limits=limits), refusal=refusal))
    return calls


def _arguments(raw: str) -> tuple[dict[str, str], str]:
    """The arguments of a call, or why it is refused."""
    try:
        request = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return {}, f"the call is not valid JSON: {error}"
    if not isinstance(request, dict):
        return {}, f"the call must be a JSON object with name and arguments, not {type(request).__name__}"
    if request.get("name") != PYTHON_TOOL:
        return {}, f"unknown tool {request.get('name')!r}; the only tool is {PYTHON_TOOL}"
    arguments = request.get("arguments")
    if not isinstance(arguments, dict):
        return {}, "arguments must be a JSON object"
    wrong = [name for name in ("code", "input") if not isinstance(arguments.get(name), str)]
    if wrong or len(arguments) != 2:
        return {}, f"{PYTHON_TOOL} takes two strings, code and input; got {', '.join(map(str, arguments)) or 'nothing'}"
    if any("\ud800" <= character <= "\udfff" for character in arguments["code"] + arguments["input"]):
        return {}, "code and input must be valid Unicode text (no lone surrogates)"
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
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        if stream:
            lines.append(f"{name}:\n{shorten(stream.rstrip(), limit)}")
    return "\n".join(lines)
