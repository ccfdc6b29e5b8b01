"""A conversation's history only grows, whatever the user, the model and the sandbox do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.tool_call import JUPYTER_TOOL, ToolResult
from policies import tokens
from policies.chat_format import ChatFormat, TemplateUnusable
from policies.conversation import STOPPED, Conversation, MessageTooLong, Waiting
from policies.dialogue import DialogueLimits, Execute, Sample
from policies.trajectory import UNTRAINED, Trajectory


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': JUPYTER_TOOL, 'arguments': {'code': code}})}\n</tool_call>"


def begin(chat: ChatFormat, **limits: object) -> Conversation:
    values = {"max_tokens": 3000, "max_turns": 3, "max_turn_tokens": 500, "tools": [JUPYTER_TOOL]} | limits
    return Conversation(id="chat-1", chat=chat, limits=DialogueLimits.model_validate(values))


def answer(conversation: Conversation, chat: ChatFormat, text: str, *, ends: bool = True) -> None:
    ids = chat.model_turn(text) if ends else chat.model_turn(text)[:-1]
    conversation.sampled(tokens.pack_ids(ids), tokens.pack_floats([-0.5] * len(ids)), UNTRAINED)


def text_of(conversation: Conversation, chat: ChatFormat) -> str:
    return chat.decode(conversation.ids())


def test_a_second_message_follows_the_sampled_tokens_as_the_template_has_it(chat: ChatFormat) -> None:
    conversation = begin(chat)
    conversation.say("One?")
    answer(conversation, chat, "first</reason>")
    assert conversation.next_action() == Waiting("answered")
    before = conversation.ids()
    conversation.say("Two?")
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<reason>first</reason>"},
        {"role": "user", "content": "Two?"},
    ]
    assert conversation.ids()[: len(before)] == before
    assert text_of(conversation, chat) == chat.render(messages, None, True) + "<reason>"
    assert conversation.next_action() == Sample(turn=1, max_tokens=500)


def test_a_turn_that_was_stopped_is_ended_for_the_model_by_the_next_message(chat: ChatFormat) -> None:
    conversation = begin(chat)
    conversation.say("One?")
    said = chat.model_turn("half a")[:-1]
    conversation.interrupted(tokens.pack_ids(said), tokens.pack_floats([-0.1] * len(said)))
    assert conversation.next_action() == Waiting("interrupted")
    conversation.say("Two?")
    assert "<reason>half a<|im_end|>\n<|im_start|>user\nTwo?" in text_of(conversation, chat)
    assert tokens.unpack_ids(conversation.spans[1].ids) == said, "the end of turn is ours, not the model's"


def test_a_turn_that_was_stopped_before_its_first_token_is_an_empty_one(chat: ChatFormat) -> None:
    conversation = begin(chat)
    conversation.say("One?")
    conversation.interrupted()
    conversation.say("Two?")
    assert "<reason><|im_end|>\n<|im_start|>user\nTwo?" in text_of(conversation, chat)
    assert conversation.turns == 0


def test_the_model_reads_that_its_code_was_stopped(chat: ChatFormat) -> None:
    conversation = begin(chat)
    conversation.say("Loop.")
    answer(conversation, chat, call("while True: pass"))
    action = conversation.next_action()
    assert isinstance(action, Execute) and action.calls[0].session == "chat-1"
    conversation.interrupted()
    assert [record.result.status for record in conversation.calls] == ["killed"]
    conversation.say("Why?")
    text = text_of(conversation, chat)
    assert text.index(STOPPED) < text.index("Why?")
    assert isinstance(conversation.next_action(), Sample)


def test_results_after_the_last_turn_are_read_with_the_next_message(chat: ChatFormat) -> None:
    conversation = begin(chat, max_turns=1)
    conversation.say("One?")
    answer(conversation, chat, call("print(7)"))
    action = conversation.next_action()
    assert isinstance(action, Execute)
    conversation.executed([ToolResult(id=action.calls[0].id, status="success", stdout="seven\n")])
    assert conversation.next_action() == Waiting("turns")
    conversation.say("Go on.")
    assert text_of(conversation, chat).count("seven") == 1
    assert conversation.next_action() == Sample(turn=1, max_tokens=500)


def test_a_message_that_does_not_fit_changes_nothing(chat: ChatFormat) -> None:
    conversation = begin(chat, max_tokens=100)
    with pytest.raises(MessageTooLong, match="the context holds 100"):
        conversation.say("x" * 200)
    assert conversation.spans == [] and conversation.waiting
    conversation.say("short")
    answer(conversation, chat, "yes")
    before = conversation.ids()
    with pytest.raises(MessageTooLong, match=f"and {len(before)} are taken"):
        conversation.say("x" * 90)
    assert conversation.ids() == before and conversation.waiting


def test_a_template_that_drops_the_second_message_is_refused(chat: ChatFormat) -> None:
    def first_message_only(messages, tools, generate):
        kept = [message for index, message in enumerate(messages) if index == 0 or message["role"] != "user"]
        return chat.render(kept, tools, generate)

    def encode(text: str) -> list[int]:
        return chat.model_turn(text)[:-1]

    forgetful = ChatFormat(
        encode=encode, decode=chat.decode, render=first_message_only, end_of_turn="<|im_end|>", instructions=False
    )
    with pytest.raises(TemplateUnusable, match="drops or changes what a user says"):
        begin(forgetful)


EVENTS = st.lists(st.sampled_from(["answer", "cut", "call", "bad", "two", "stop", "late stop", "fail"]), max_size=12)


@given(EVENTS, st.integers(120, 1500), st.integers(1, 3))
def test_whatever_happens_the_history_grows_and_every_call_has_its_result(
    chat: ChatFormat, events: list[str], context: int, turns: int
) -> None:
    conversation = begin(chat, max_tokens=context, max_turns=turns)
    texts = {"answer": "ok", "cut": "ok", "call": call("1"), "bad": "<tool_call>x</tool_call>", "two": call("1") * 2}
    history: list[int] = []
    written = 0
    for event in events:
        if conversation.waiting:
            try:
                conversation.say("And?")
            except MessageTooLong:
                assert conversation.ids() == history
                break
        action = conversation.next_action()
        if isinstance(action, Execute):
            status = "sandbox_failure" if event == "fail" else "success"
            if event == "stop":
                conversation.interrupted()
            else:
                conversation.executed([ToolResult(id=each.id, status=status) for each in action.calls])
        elif isinstance(action, Sample):
            ids = chat.model_turn(texts.get(event, "ok"))[: action.max_tokens]
            ids = ids[:-1] if event in ("cut", "late stop") and len(ids) > 1 else ids
            packed = tokens.pack_ids(ids), tokens.pack_floats([-1.0] * len(ids))
            if event == "stop":
                conversation.interrupted()
            elif event == "late stop":
                conversation.interrupted(*packed)
            else:
                conversation.sampled(*packed, UNTRAINED)
                written += chat.decode(ids).count("<tool_call>") if ids[-1] in chat.stop_ids else 0
        assert conversation.ids()[: len(history)] == history and conversation.length <= context
        history = conversation.ids()
    ids = [record.call.id for record in conversation.calls]
    if not isinstance(conversation.next_action(), Execute):
        assert len(ids) == written, "a call that is not running has its result, also a refused one"
    assert len(set(ids)) == len(ids) and all(r.call.id == r.result.id for r in conversation.calls)
    if conversation.spans:
        stored = conversation.trajectory(4)
        assert Trajectory.model_validate(stored.model_dump()) == stored and stored.turns == conversation.turns
