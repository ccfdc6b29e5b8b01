"""A chat as a pure state machine: a user's messages, the model's turns, and the calls that it makes in between.

    conversation = Conversation(id="chat-1", chat=chat, limits=limits)
    conversation.say("What is 6 * 7?")
    while not isinstance(action := conversation.next_action(), Waiting):
        match action:
            case Sample(): conversation.sampled(ids, logprobs, version)
            case Execute(): conversation.executed(results)

Invariants:
- the history is token ids that only grow; what the model sampled is never decoded and encoded again: a turn that was
  cut off is ended by an end-of-turn token of ours, at the head of the next span;
- it never becomes longer than `max_tokens`: a message that does not fit is refused, and changes nothing;
- each call has exactly one result, and the model reads it before whatever is said next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from env.tool_call import ToolResult
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import NO_ANSWER, DialogueLimits, Execute, Sample, Turn, TurnTaking
from policies.tokens import PackedIds
from policies.trajectory import UNTRAINED, CallRecord, Finish, Problem, Span, Trajectory, VersionRun, WeightsVersion

STOPPED = "The user stopped it."
STAGE = "chat"


class MessageTooLong(ValueError):
    """A message for which the context has no room left."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is the user's turn."""

    finish: Finish | None
    """How the model's last turn ended; None before the first."""


class Conversation(TurnTaking):
    """See the module's docstring.

    Args:
        id: name of the conversation, and of its session in the sandbox.
        limits: `max_tokens` is the context, `max_turns` counts model turns from one message to the next.

    Raises `policies.chat_format.TemplateUnusable` if the chat template can't take a second message.
    """

    def __init__(self, *, id: str, chat: ChatFormat, limits: DialogueLimits) -> None:
        chat.user_turn("And then?", ["probe"])
        self._chat = chat
        self._begin(id, limits)
        self.question = ""
        """The first message."""
        self._waiting = Waiting(None)
        self._is_waiting = True
        self._unread: list[CallRecord] = []
        """Results that the model is still to read, with the next message."""
        self._cut_off = False
        """Whether the history ends within a model turn."""

    @property
    def waiting(self) -> bool:
        """Whether it is the user's turn."""
        return self._is_waiting

    def say(self, text: str) -> None:
        """Take in a message of the user. Raises `MessageTooLong`; nothing has changed then."""
        assert self._is_waiting, "a message came in the middle of the model's turn"
        if self.spans:
            end = self._chat.stop_ids[:1] if self._cut_off else ()
            ids = [*end, *self._chat.user_turn(text, self._texts(self._unread))]
        else:
            ids = self._chat.prompt(text, self._limits.tools)
        if self.length + len(ids) >= self._limits.max_tokens:
            held = f", and {self.length} are taken" if self.spans else ""
            raise MessageTooLong(
                f"this message makes {len(ids)} tokens, the context holds {self._limits.max_tokens}{held}; "
                "shorten it, begin anew (/reset), or give a larger --context"
            )
        self.question = self.question or text
        self._append(Span(kind="prompt", ids=tokens.pack_ids(ids)))
        self._unread, self._cut_off, self._is_waiting = [], False, False
        self._uncounted_turns = self.turns

    def next_action(self) -> Sample | Execute | Waiting:
        """What has to happen next; asking again changes nothing."""
        if self._is_waiting:
            return self._waiting
        return self._next()

    def interrupted(self, ids: PackedIds = b"", logprobs: bytes = b"", version: WeightsVersion = UNTRAINED) -> None:
        """The user has stopped the model, or its code: it is the user's turn.

        Args: of the turn that was being sampled, what there was of it.
        """
        assert not self._is_waiting, "there was nothing to interrupt"
        if self._pending:
            stopped = [ToolResult(id=request.call.id, status="killed", reason=STOPPED) for request in self._runnable()]
            self._stopped("interrupted", self._record(stopped))
            return
        if ids:
            self._take(ids, logprobs, version)
        else:
            self._cut_off = True
        self._wait("interrupted")

    def ids(self) -> list[int]:
        """The whole history `[L]`."""
        return tokens.unpack_ids(tokens.concatenate(span.ids for span in self.spans))

    def trajectory(self, index: int) -> Trajectory:
        """The conversation as it stands, as archives hold rollouts; nobody judges it.

        Args:
            index: of the conversation in its archive.
        """
        assert self.spans, "nothing has been said yet"
        group = f"{STAGE}/0/{index}"
        return Trajectory(
            id=f"{group}/0",
            group=group,
            sample=0,
            stage=STAGE,
            step=0,
            problem=Problem(id=f"{STAGE}-{index}", question=self.question, gold="", family=STAGE),
            spans=tuple(self.spans),
            calls=tuple(self.calls),
            turns=self.turns,
            answer_tags=self.answer_tags,
            finish=self._waiting.finish or "interrupted",
            verdict=NO_ANSWER,
            reward=0.0,
            generator=STAGE,
        )

    def _goes_on(self) -> bool:
        return not self._is_waiting

    def _answered(self) -> None:
        self._wait("answered")

    def _stopped(self, finish: Finish, unread: list[CallRecord]) -> None:
        self._unread = unread
        self._wait(finish)

    def _take(
        self, ids: PackedIds, logprobs: bytes, version: WeightsVersion, earlier: Sequence[VersionRun] = ()
    ) -> Turn:
        turn = super()._take(ids, logprobs, version, earlier)
        self._cut_off = not turn.ended
        return turn

    def _wait(self, finish: Finish) -> None:
        self._waiting, self._is_waiting = Waiting(finish), True
