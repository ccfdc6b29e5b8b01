"""Dialogues as tokens: what is learned is what the assistant says, and tokens are cut as rollouts cut them."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import PYTHON_TOOL, Limits, ToolResult
from orchestration.tiny_model import write_tokenizer
from policies import tokens
from policies.chat_data import ChatSample, Message, pieces_of, training_sequence
from policies.chat_format import ChatFormat, TemplateUnusable
from policies.demonstrations import call_text
from policies.dialogue import Dialogue, DialogueLimits, Execute
from policies.tool_calls import result_text, schemas_of
from policies.trajectory import Problem, WeightsVersion

CALL = f"<reason> I run it.</reason>\n{call_text('print(42)')}"
ANSWER = "<reason> There it is.</reason>\n<answer>\\boxed{42}</answer>"
RESULT = ToolResult(id="", status="success", stdout="42\n", exit_code=0)
TRACE = ChatSample(
    messages=(
        Message(role="user", content="What is 6 times 7?"),
        Message(role="assistant", content=CALL),
        Message(role="tool", content=result_text(RESULT, 512)),
        Message(role="assistant", content=ANSWER),
    ),
    tools=tuple(schemas_of((PYTHON_TOOL,))),
    poses_problem=True,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return folder


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return load_chat_format(str(folder), PromptOptions(instructions=False))


def test_a_trace_has_just_the_tokens_of_a_rollout_that_says_the_same(chat: ChatFormat) -> None:
    dialogue = Dialogue(
        id="r",
        chat=chat,
        problem=Problem(id="p", question="What is 6 times 7?", gold="42"),
        limits=DialogueLimits(max_tokens=2000, tool_response_characters=512, call=Limits()),
    )
    learned: list[int] = []
    for said in (CALL, ANSWER):
        ids = chat.model_turn(said.removeprefix("<reason>"))
        learned += ids
        dialogue.sampled(tokens.pack_ids(ids), bytes(4 * len(ids)), WeightsVersion(0, 0))
        action = dialogue.next_action()
        if isinstance(action, Execute):
            dialogue.executed([RESULT.model_copy(update={"id": action.calls[0].id})])
    sequence = training_sequence(TRACE, chat)
    assert sequence.ids == dialogue.ids_from(0)
    assert [i for i, mark in zip(tokens.unpack_ids(sequence.ids), sequence.learned, strict=True) if mark] == learned


def test_only_the_assistant_and_its_end_of_turn_are_learned(chat: ChatFormat) -> None:
    pieces = pieces_of(TRACE, chat)
    assert [chat.decode(piece.ids) for piece in pieces if piece.learned] == [
        CALL.removeprefix("<reason>") + "<|im_end|>",
        ANSWER.removeprefix("<reason>") + "<|im_end|>",
    ]
    assert "<tool_response>" in chat.decode(pieces[2].ids) and not pieces[2].learned


def test_what_nobody_answers_is_cut_off(chat: ChatFormat) -> None:
    longer = TRACE.model_copy(update={"messages": (*TRACE.messages, Message(role="user", content="And now?"))})
    assert training_sequence(longer, chat) == training_sequence(TRACE, chat)


def altered(folder: Path, template: str) -> ChatFormat:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = template
    changed = folder / "changed"
    tokenizer.save_pretrained(changed)
    return load_chat_format(str(changed), PromptOptions(instructions=False))


def test_a_template_that_changes_what_was_said_is_refused(folder: Path, chat: ChatFormat) -> None:
    """Some templates cut the reasoning out of earlier turns: rollouts would not see what was learned."""
    template = (folder / "chat_template.jinja").read_text()
    cutting = template.replace(
        "message.content + '<|im_end|>'", "message.content.split('</reason>')[-1] + '<|im_end|>'"
    )
    assert cutting != template
    with pytest.raises(TemplateUnusable, match="changes what was said"):
        training_sequence(TRACE, altered(folder, cutting))


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("in messages -", "in messages if message.role != 'tool' -"),
        ("message.content + '\\n</tool_response>", "'\\n</tool_response>"),
        ("message.content + '<|im_end|>'", "message.content"),
    ],
    ids=["tool messages left out", "without their content", "assistant not ended"],
)
def test_a_template_by_which_no_result_is_read_is_refused(folder: Path, words: str, others: str) -> None:
    template = (folder / "chat_template.jinja").read_text()
    assert words in template
    chat = altered(folder, template.replace(words, others))  # without tools it may do
    with pytest.raises(TemplateUnusable, match=r"drops a tool's result, or does not end the assistant message before"):
        chat.check_results()


def test_a_template_that_makes_json_of_results_will_do(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    escaping = template.replace(
        "message.content + '\\n</tool_response>", "(message.content | tojson) + '\\n</tool_response>"
    )
    assert escaping != template
    chat = altered(folder, escaping)
    chat.check_results()
    assert '"a \\"b\\""' in chat.decode(chat.tool_turn(['a "b"']))


def test_a_template_that_drops_earlier_turns_is_refused(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text().replace("in messages", "in messages[-2:]")
    with pytest.raises(TemplateUnusable, match="message 1"):
        training_sequence(TRACE, altered(folder, template))
