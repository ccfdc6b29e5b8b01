"""Public sets of chats for SFT: how a row of each becomes a `ChatSample`. Pure.

The sets are those that rStar2-Agent's SFT used (arXiv 2508.20722): ToolACE, APIGen-MT, Glaive function calling v2,
Magicoder (recast to calls of the Python tool), Tulu 3 instruction following, Llama-Nemotron chat. A row that can't be
used raises `RowUnusable`, one that is left out on purpose gives None.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from env.tool_call import PYTHON_TOOL
from policies.chat_data import ChatSample, Message, Role, calls_text
from policies.data_options import ChatFormatName
from policies.gsm8k_traces import NoTrace, gsm8k_trace
from policies.problem_sets import Row, RowUnusable, gsm8k_gold, text
from policies.tool_calls import schemas_of


@dataclass(frozen=True, slots=True)
class ChatSet:
    """One set."""

    hub: str
    columns: tuple[str, ...]
    convert: Callable[[Row], ChatSample | None]


def _sample(messages: list[Message], tools: list[dict[str, Any]] | None = None) -> ChatSample:
    try:
        return ChatSample(messages=tuple(messages), tools=tuple(map(as_tool, tools or [])))
    except ValidationError as error:
        raise RowUnusable(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error


def as_tool(function: Any) -> dict[str, Any]:
    """A function's description as chat templates take it. Raises `RowUnusable`."""
    if isinstance(function, dict) and function.get("type") == "function" and isinstance(function.get("function"), dict):
        return function
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowUnusable(f"{function!r:.80} describes no function: it has no name")
    return {"type": "function", "function": function}


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RowUnusable(f"{what} is not valid JSON: {error}") from error


def _call(raw: Any) -> tuple[str, dict[str, Any]]:
    """A call from JSON, as an object or as text; OpenAI's `{"function": {...}}` counts too."""
    call = _json(raw, "a call")
    call = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise RowUnusable(f"{raw!r:.80} is no call: it has no name")
    arguments = _json(call.get("arguments", {}), "a call's arguments")
    if not isinstance(arguments, dict):
        raise RowUnusable(f"the arguments of {call['name']!r} are no object: {arguments!r:.80}")
    return call["name"], arguments


# -- chat: messages with roles


def _chat(row: Row) -> ChatSample:
    if not isinstance(row["messages"], list):
        raise RowUnusable("column 'messages' is no list")
    messages = [_chat_message(message) for message in row["messages"]]
    return _sample(messages, _json(row.get("tools"), "column 'tools'"))


def _chat_message(message: Any) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant", "tool"):
        raise RowUnusable(f"{message!r:.80} is no message with a role of system, user, assistant or tool")
    said = message.get("content") or ""
    if not isinstance(said, str):
        raise RowUnusable(f"a message's content is no text: {said!r:.80}")
    calls = [_call(call) for call in message.get("tool_calls") or []]
    return Message(role=message["role"], content=calls_text(said, calls) if calls else said)


# -- turns with `from` and `value`, as ToolACE and APIGen-MT have them


def _turns(row: Row, roles: Mapping[str, Role], said: Callable[[str, Row], str]) -> list[Message]:
    """The messages of column `conversations`.

    Args:
        roles: who a turn may be from, and the role that this is.
        said: who a turn is from, and the turn -> its text.
    """
    if not isinstance(row["conversations"], list):
        raise RowUnusable("column 'conversations' is no list")
    messages = []
    for turn in row["conversations"]:
        sender = turn.get("from") if isinstance(turn, Mapping) else None
        if not isinstance(sender, str) or sender not in roles:
            raise RowUnusable(f"a turn is from {sender!r:.80}, not from {', '.join(roles)}")
        messages.append(Message(role=roles[sender], content=said(sender, turn)))
    return messages


# -- ToolACE: calls as [name(argument=value), ...] in the text


def _toolace(row: Row) -> ChatSample:
    system = text(row, "system")
    start = system.find("[{")
    if start < 0:
        raise RowUnusable("column 'system' lists no functions as JSON")
    try:
        tools, _ = json.JSONDecoder().raw_decode(system[start:])
    except ValueError as error:
        raise RowUnusable(f"the functions in column 'system' are not valid JSON: {error}") from error
    # What stands before and after the list explains ToolACE's own notation; ours replaces it.
    return _sample(_turns(row, _TOOLACE_ROLES, _toolace_text), tools)


_TOOLACE_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}


def _toolace_text(sender: str, turn: Row) -> str:
    said = text(turn, "value")
    if sender == "assistant" and said.startswith("[") and said.endswith("]"):
        return calls_text("", bracket_calls(said))
    return said


_NAME = re.compile(r"\s*([^\[\](),=\"']+?)\s*\(")


def bracket_calls(said: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of `[name(argument=value, ...), ...]`; names may hold spaces. Raises `RowUnusable`."""
    inner, at, calls = said[1:-1], 0, []
    while at < len(inner):
        name = _NAME.match(inner, at)
        if name is None:
            raise RowUnusable(f"{said!r:.120} is no list of calls")
        end = _closing(inner, name.end() - 1)
        calls.append((name[1], _keywords(inner[name.end() : end], said)))
        at = end + 1
        rest = re.compile(r"\s*(?:,|\Z)").match(inner, at)
        if rest is None:
            raise RowUnusable(f"{said!r:.120} is no list of calls")
        at = rest.end()
    return calls


def _closing(text_: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed, quotes respected."""
    depth, quote, skip = 0, "", False
    for at in range(start, len(text_)):
        character = text_[at]
        if skip:
            skip = False
        elif character == "\\" and quote:
            skip = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return at
    raise RowUnusable(f"a bracket is not closed: {text_!r:.120}")


def _keywords(inside: str, said: str) -> dict[str, Any]:
    json_words = {"true": True, "false": False, "null": None}
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RowUnusable(f"the arguments in {said!r:.120} can't be read: {error}") from error
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise RowUnusable(f"arguments without a name in {said!r:.120}")
    try:
        return {
            str(keyword.arg): json_words[keyword.value.id]
            if isinstance(keyword.value, ast.Name) and keyword.value.id in json_words
            else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, TypeError, RecursionError) as error:
        raise RowUnusable(f"the arguments in {said!r:.120} can't be read: {error}") from error


# -- APIGen-MT: turns from human, gpt, function_call and observation


def _apigen(row: Row) -> ChatSample:
    messages = [Message(role="system", content=str(row["system"]))] if row.get("system") else []
    messages += _turns(row, _APIGEN_ROLES, _apigen_text)
    return _sample(messages, _json(row["tools"], "column 'tools'"))


_APIGEN_ROLES: dict[str, Role] = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


def _apigen_text(sender: str, turn: Row) -> str:
    return calls_text("", [_call(turn.get("value"))]) if sender == "function_call" else text(turn, "value")


# -- Glaive function calling v2: one text per row, arguments quoted


_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_GLAIVE_CALL = re.compile(r"<functioncall>\s*(.*)", re.DOTALL)
_GLAIVE_ROLES: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}


def _glaive(row: Row) -> ChatSample:
    parts = _GLAIVE_TURN.split(text(row, "chat"))
    messages = []
    for kind, said in zip(parts[1::2], parts[2::2], strict=True):
        said = said.replace("<|endoftext|>", "").strip()
        call = _GLAIVE_CALL.search(said) if kind == "ASSISTANT" else None
        if call is not None:
            said = calls_text(said[: call.start()].strip(), [_glaive_call(call[1].strip())])
        messages.append(Message(role=_GLAIVE_ROLES[kind], content=said))
    return _sample(messages, _glaive_tools(str(row["system"])))


def _glaive_call(raw: str) -> tuple[str, dict[str, Any]]:
    """`{"name": "f", "arguments": '{"a": 1}'}`: JSON but for the quotes around the arguments."""
    return _call(re.sub(r"'(\{.*\})'", lambda quoted: quoted[1].replace("\\'", "'"), raw, flags=re.DOTALL))


def _glaive_tools(system: str) -> list[dict[str, Any]]:
    """The objects that stand one after another in the system text."""
    tools, at, decoder = [], system.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            tool, length = decoder.raw_decode(system[at:])
        except ValueError as error:
            raise RowUnusable(f"the functions in column 'system' are not valid JSON: {error}") from error
        tools.append(tool)
        at = system.find("{", at + length)
    return tools


# -- Magicoder: solutions in Python, recast to calls of our tool


_PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _magicoder(row: Row) -> ChatSample | None:
    """Both of Magicoder's sets: `problem` and `solution`, or `instruction` and `response`."""
    asked, answered = ("problem", "solution") if "problem" in row else ("instruction", "response")
    if asked not in row or answered not in row:
        raise RowUnusable("no columns 'problem' and 'solution', nor 'instruction' and 'response'")
    programs = _PYTHON_BLOCK.findall(text(row, answered))
    if len(programs) != 1 or row.get("lang", "python") != "python":
        return None  # other languages, and answers that are no one program
    call = (PYTHON_TOOL, {"code": programs[0].strip(), "input": ""})
    return _sample(
        [
            Message(role="user", content=text(row, asked)),
            Message(role="assistant", content=calls_text("", [call])),
        ],
        schemas_of((PYTHON_TOOL,)),
    )


_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


def _nemotron(row: Row) -> ChatSample | None:
    if row.get("reasoning") == "on":
        return None  # SFT is non-reasoning
    asked = row["input"]
    messages = [_chat_message(turn) for turn in asked] if isinstance(asked, list) else []
    if not messages:
        messages = [Message(role="user", content=text(row, "input"))]
    if row.get("system_prompt"):
        messages.insert(0, Message(role="system", content=str(row["system_prompt"])))
    answer = _THOUGHT.sub("", text(row, "output"))
    return _sample([*messages, Message(role="assistant", content=answer)])


def _gsm8k(row: Row) -> ChatSample | None:
    solution = text(row, "answer")
    gold = gsm8k_gold(solution)
    try:
        return gsm8k_trace(text(row, "question"), solution, gold)
    except NoTrace:
        return None


CHAT_SETS: dict[ChatFormatName, ChatSet] = {
    "chat": ChatSet("", ("messages",), _chat),
    "toolace": ChatSet("Team-ACE/ToolACE", ("system", "conversations"), _toolace),
    "apigen-mt": ChatSet("Salesforce/APIGen-MT-5k", ("conversations", "tools"), _apigen),
    "glaive-v2": ChatSet("glaiveai/glaive-function-calling-v2", ("system", "chat"), _glaive),
    "magicoder": ChatSet("ise-uiuc/Magicoder-OSS-Instruct-75K", (), _magicoder),
    "tulu3-if": ChatSet("allenai/tulu-3-sft-personas-instruction-following", ("messages",), _chat),
    "llama-nemotron": ChatSet("nvidia/Llama-Nemotron-Post-Training-Dataset", ("input", "output"), _nemotron),
    "gsm8k-traces": ChatSet("openai/gsm8k", ("question", "answer"), _gsm8k),
}
assert CHAT_SETS.keys() == set(get_args(ChatFormatName)), "ChatFormatName and CHAT_SETS must name the same forms"
