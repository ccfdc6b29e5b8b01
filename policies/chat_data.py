"""Dialogues to imitate, in one normal form, and their tokens with the mask of what is learned.

Invariants:
- tool calls stand in the assistant's text as rollouts write them (`policies.tool_calls`), so what is learned is what
  is parsed later;
- only what an assistant says, and the token that ends its turn, is learned;
- tokens are cut where rollouts cut them (prompt, model turn, tool turn), and decode to what the chat template makes of
  the dialogue: `training_sequence` checks both and raises `TemplateUnusable` otherwise.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import model_validator

from policies import tokens
from policies.batch import TrainingSequence
from policies.chat_format import ChatFormat, Piece, TemplateUnusable
from policies.tool_calls import written_call
from policies.trajectory import Record

Role = Literal["system", "user", "assistant", "tool"]


class Message(Record):
    role: Role
    content: str


class ChatSample(Record):
    """A dialogue."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """As chat templates take them: `{"type": "function", "function": {...}}`."""
    poses_problem: bool = False
    """Whether the first message is a problem of ours: it is then put to the model as rollouts put theirs."""

    @model_validator(mode="after")
    def _can_be_learned(self) -> ChatSample:
        if not any(message.role == "assistant" for message in self.messages):
            raise ValueError("no message is the assistant's: there is nothing to learn")
        if self.messages[0].role == "assistant":
            raise ValueError("the first message is the assistant's; a dialogue begins with a user or a system message")
        if self.poses_problem and self.messages[0].role != "user":
            raise ValueError("a dialogue that poses a problem begins with it, as the user's message")
        return self


class Shown(NamedTuple):
    """A piece of a dialogue, for people."""

    text: str
    learned: bool


def calls_text(said: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What an assistant says with its calls, `(name, arguments)` each."""
    return "\n".join([*([said] if said else []), *(written_call(*call) for call in calls)])


def training_sequence(sample: ChatSample, chat: ChatFormat) -> TrainingSequence:
    """The sample as tokens, after the last assistant message nothing.

    Raises `TemplateUnusable` if the chat template and the mask do not agree, `ValueError` if no token is learned.
    """
    pieces = pieces_of(sample, chat)
    ids: list[int] = []
    learned = bytearray()
    for piece in pieces:
        ids += piece.ids
        learned += (b"\x01" if piece.learned else b"\x00") * len(piece.ids)
    return TrainingSequence(ids=tokens.pack_ids(ids), learned=bytes(learned))


def pieces_of(sample: ChatSample, chat: ChatFormat) -> list[Piece]:
    """The sample in pieces, of the model and of others in turn."""
    if sample.poses_problem:
        messages = [*chat.opening_messages(sample.messages[0].content), *_plain(sample.messages[1:])]
    else:
        messages = _plain(sample.messages)
    while messages[-1]["role"] != "assistant":
        messages.pop()  # what nobody answers teaches nothing
    pieces = chat.conversation(messages, list(sample.tools) or None)
    _agree(pieces, chat, messages, list(sample.tools) or None)
    return pieces


def _plain(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [message.model_dump() for message in messages]


def _agree(
    pieces: list[Piece], chat: ChatFormat, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    """Check that the pieces decode to the rendered dialogue, and that the learned ones are the assistant's words."""
    rendered = chat.render(messages, tools, False)
    decoded = "".join(chat.decode(piece.ids) for piece in pieces)
    if not rendered.startswith(decoded):
        at = next((i for i, (a, b) in enumerate(zip(rendered, decoded, strict=False)) if a != b), len(rendered))
        raise TemplateUnusable(
            "the chat template changes what was said, so the mask can't be trusted: it renders "
            f"{rendered[max(0, at - 40) : at + 40]!r}, but the dialogue has {decoded[max(0, at - 40) : at + 40]!r}"
        )
    if rendered[len(decoded) :].strip():
        raise TemplateUnusable(f"the chat template puts {rendered[len(decoded) :]!r:.80} after the last turn")
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    mine = [chat.decode(piece.ids) for piece in pieces if piece.learned]
    for content, learned in zip(said, mine, strict=True):
        if learned != chat.without_opening(content) + chat.end_of_turn:
            raise TemplateUnusable(f"the mask covers {learned!r:.120}, but the assistant said {content!r:.120}")
