"""A row of each public set's shape, with made-up content, becomes a dialogue in our form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from env.tool_call import Limits
from policies.chat_data import ChatSample
from policies.chat_sets import CHAT_SETS, bracket_calls
from policies.data_options import ChatFormatName
from policies.graders.bfcl import calls_of
from policies.problem_sets import RowUnusable
from policies.tool_calls import parse_calls

WEATHER = {"name": "get weather", "description": "Weather.", "parameters": {"type": "dict", "properties": {}}}


def convert(name: ChatFormatName, row: dict[str, Any]) -> ChatSample:
    sample = CHAT_SETS[name].convert(row)
    assert sample is not None
    return sample


def roles(sample: ChatSample) -> list[str]:
    return [message.role for message in sample.messages]


def test_toolace_calls_become_json() -> None:
    row = {
        "system": "You may call these functions:\n[" + json.dumps(WEATHER) + "]\nWrite [name(a=1)].",
        "conversations": [
            {"from": "user", "value": "Rain in Bonn?"},
            {"from": "assistant", "value": '[get weather(city="Bonn (NRW), \\"old\\"", days=[1, 2], metric=true)]'},
            {"from": "tool", "value": '[{"rain": 3}]'},
            {"from": "assistant", "value": "Yes, [3 mm]."},
        ],
    }
    sample = convert("toolace", row)
    assert roles(sample) == ["user", "assistant", "tool", "assistant"]
    (call,) = calls_of(sample.messages[1].content)
    assert (call.name, call.arguments) == (
        "get weather",
        {"city": 'Bonn (NRW), "old"', "days": [1, 2], "metric": True},
    )
    assert sample.tools == ({"type": "function", "function": WEATHER},)
    assert sample.messages[3].content == "Yes, [3 mm]."


def test_toolace_calls_may_be_several_and_without_arguments() -> None:
    assert bracket_calls("[a.b(x=-1), c d()]") == [("a.b", {"x": -1}), ("c d", {})]


@pytest.mark.parametrize("said", ["[f(1)]", "[f(x=1]", "[f(x=y)]", "[see below]", "[f(x=1) g()]"])
def test_what_is_no_list_of_calls_is_refused(said: str) -> None:
    with pytest.raises(RowUnusable):
        bracket_calls(said)


def test_apigen_turns_become_messages() -> None:
    row = {
        "system": "Follow the policy.",
        "tools": json.dumps([WEATHER]),
        "conversations": [
            {"from": "human", "value": "Rain?"},
            {"from": "function_call", "value": '{"name": "get weather", "arguments": {"city": "Bonn"}}'},
            {"from": "observation", "value": "3 mm"},
            {"from": "gpt", "value": "Yes."},
        ],
    }
    sample = convert("apigen-mt", row)
    assert roles(sample) == ["system", "user", "assistant", "tool", "assistant"]
    assert calls_of(sample.messages[2].content)[0].arguments == {"city": "Bonn"}


def test_glaive_text_becomes_messages() -> None:
    other = {"name": "convert", "description": "Money.", "parameters": {"type": "object", "properties": {"a": {}}}}
    row = {
        "system": "SYSTEM: You are helpful, with these functions -\n"
        + json.dumps(WEATHER, indent=2)
        + "\n\n"
        + json.dumps(other),
        "chat": "USER: How much is 5 USD?\n\n\nASSISTANT: <functioncall> "
        '{"name": "convert", "arguments": \'{"a": 5, "to": "l\\\'euro"}\'} <|endoftext|>\n\n\n'
        'FUNCTION RESPONSE: {"euro": 4}\n\n\nASSISTANT: It is 4 euro. <|endoftext|>\n\n\n',
    }
    sample = convert("glaive-v2", row)
    assert roles(sample) == ["user", "assistant", "tool", "assistant"]
    assert calls_of(sample.messages[1].content)[0].arguments == {"a": 5, "to": "l'euro"}
    assert sample.messages[3].content == "It is 4 euro."
    assert [tool["function"]["name"] for tool in sample.tools] == ["get weather", "convert"]


def test_magicoder_programs_become_calls_that_our_parser_reads() -> None:
    row = {"lang": "python", "problem": "Print 3.", "solution": "Like this:\n```python\nprint(3)\n```\nDone."}
    (request,) = parse_calls(convert("magicoder", row).messages[1].content, "t", Limits())
    assert (request.refusal, request.call.code) == ("", "print(3)")
    evolved = {"instruction": "Print 3.", "response": "```python\nprint(3)\n```"}
    assert convert("magicoder", evolved).messages[1] == convert("magicoder", row).messages[1]


def test_magicoder_in_other_languages_is_left_out() -> None:
    assert CHAT_SETS["magicoder"].convert({"lang": "rust", "problem": "P", "solution": "```python\nx\n```"}) is None
    assert CHAT_SETS["magicoder"].convert({"lang": "python", "problem": "P", "solution": "no program"}) is None


def test_tulu_messages_are_taken_as_they_are() -> None:
    messages = [{"role": "user", "content": "No commas, please."}, {"role": "assistant", "content": "Fine."}]
    sample = convert("tulu3-if", {"id": "1", "prompt": "p", "messages": messages, "constraints": ["no comma"]})
    assert [message.model_dump() for message in sample.messages] == messages


def test_nemotron_keeps_answers_without_thoughts() -> None:
    row = {"input": [{"role": "user", "content": "Hi"}], "output": "<think>\n\n</think>\nHello.", "reasoning": "off"}
    sample = convert("llama-nemotron", row | {"system_prompt": "Be kind."})
    assert roles(sample) == ["system", "user", "assistant"] and sample.messages[-1].content == "Hello."
    assert CHAT_SETS["llama-nemotron"].convert(row | {"reasoning": "on"}) is None


def test_plain_chats_may_carry_calls_as_openai_has_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
        {"role": "assistant", "content": "Done."},
    ]
    sample = convert("chat", {"messages": messages, "tools": [WEATHER]})
    assert calls_of(sample.messages[1].content)[0] == ("f", {"a": 1})


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        ("chat", {"messages": [{"role": "user", "content": "alone"}]}, "nothing to learn"),
        ("chat", {"messages": [{"role": "bot", "content": "x"}]}, "role"),
        ("chat", {"messages": "text"}, "no list"),
        ("toolace", {"system": "nothing", "conversations": []}, "lists no functions"),
        ("apigen-mt", {"tools": "[", "conversations": [{"from": "gpt", "value": "x"}]}, "not valid JSON"),
        ("apigen-mt", {"tools": "[]", "conversations": [{"from": "cat", "value": "x"}]}, "from 'cat'"),
        ("apigen-mt", {"tools": "[]", "conversations": "Hi."}, "no list"),
        ("toolace", {"system": "[{}]", "conversations": ["user"]}, "from None"),
        ("gsm8k-traces", {"question": "q", "answer": "none"}, "####"),
        ("gsm8k-traces", {"question": "q", "answer": "3"}, "####"),
    ],
)
def test_rows_that_can_not_be_used_say_why(name: ChatFormatName, row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RowUnusable, match=complaint):
        CHAT_SETS[name].convert(row)
