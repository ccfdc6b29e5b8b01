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
from policies.dialogue import NO_ANSWER, TOOLS_OFF, DialogueLimits, Execute, Sample
from policies.tokens import PackedIds
from policies.tool_calls import RequestedCall, parse_calls, result_text
from policies.trajectory import UNTRAINED, CallRecord, Finish, Problem, Span, Trajectory, WeightsVersion
from policies.verification import count_answers

STOPPED = "The user stopped it."
STAGE = "chat"


class MessageTooLong(ValueError):
    """A message for which the context has no room left."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is the user's turn."""

    finish: Finish | None
    """How the model's last turn ended; None before the first."""


class Conversation:
    """See the module's docstring.

    Args:
        id: name of the conversation, and of its session in the sandbox.
        limits: `max_tokens` is the context, `max_turns` counts model turns from one message to the next.

    Raises `policies.chat_format.TemplateUnusable` if the chat template can't take a second message.
    """

    def __init__(self, *, id: str, chat: ChatFormat, limits: DialogueLimits) -> None:
        chat.user_turn("And then?", ["probe"])
        self.id, self._chat, self._limits = id, chat, limits
        self.question = ""
        """The first message."""
        self.spans: list[Span] = []
        self.calls: list[CallRecord] = []
        self.turns = self.answer_tags = self.length = 0
        self._turns_before = 0
        """Model turns before the last message."""
        self._waiting = Waiting(None)
        self._is_waiting = True
        self._pending: list[RequestedCall] = []
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
        self._turns_before = self.turns

    def next_action(self) -> Sample | Execute | Waiting:
        """What has to happen next; asking again changes nothing."""
        if self._is_waiting:
            return self._waiting
        if self._pending:
            return Execute(tuple(request.call for request in self._runnable()))
        return Sample(self.turns, min(self._limits.max_turn_tokens, self._limits.max_tokens - self.length))

    def sampled(self, ids: PackedIds, logprobs: bytes, version: WeightsVersion) -> None:
        """Take in a model turn: ids int32 `[L]`, logprobs float32 `[L]`."""
        assert not (self._is_waiting or self._pending), "a model turn came when none was due"
        text = self._take(ids, logprobs, version)
        if self._cut_off:
            self._wait("length")
            return
        calls = parse_calls(text, f"{self.id}/{self.turns - 1}", self._limits.call, self._limits.tools, session=self.id)
        if not self._limits.tools:
            calls = [request.model_copy(update={"refusal": TOOLS_OFF}) for request in calls]
        self._pending = calls
        if not calls:
            self._wait("answered")
        elif not self._runnable():
            self.executed(())

    def executed(self, results: Sequence[ToolResult]) -> None:
        """Take in the results of the calls of `Execute`, in order."""
        records = self._record(results)
        if any(record.result.status == "sandbox_failure" for record in records):
            self._leave_unread(records, "sandbox_failure")
            return
        response = tokens.pack_ids(self._chat.tool_turn(self._texts(records)))
        if self.length + tokens.count(response) >= self._limits.max_tokens:
            self._leave_unread(records, "length")
        elif self.turns - self._turns_before >= self._limits.max_turns:
            self._leave_unread(records, "turns")
        else:
            self._append(Span(kind="tool", ids=response))

    def interrupted(self, ids: PackedIds = b"", logprobs: bytes = b"", version: WeightsVersion = UNTRAINED) -> None:
        """The user has stopped the model, or its code: it is the user's turn.

        Args: of the turn that was being sampled, what there was of it.
        """
        assert not self._is_waiting, "there was nothing to interrupt"
        if self._pending:
            stopped = [ToolResult(id=request.call.id, status="killed", reason=STOPPED) for request in self._runnable()]
            self._leave_unread(self._record(stopped), "interrupted")
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

    def _take(self, ids: PackedIds, logprobs: bytes, version: WeightsVersion) -> str:
        """Append what the model said, and return it as text."""
        self._append(Span(kind="model", ids=ids, logprobs=logprobs, version=version))
        self.turns += 1
        unpacked = tokens.unpack_ids(ids)
        self._cut_off = unpacked[-1] not in self._chat.stop_ids
        text = self._chat.decode(unpacked)
        self.answer_tags += count_answers(text)
        return text

    def _record(self, results: Sequence[ToolResult]) -> list[CallRecord]:
        """Enter the results of the pending calls, refused ones included."""
        ran = {result.id: result for result in results}
        records = [
            CallRecord(
                turn=self.turns - 1,
                call=request.call,
                result=request.refused() if request.refusal else ran[request.call.id],
            )
            for request in self._pending
        ]
        self._pending = []
        self.calls += records
        return records

    def _texts(self, records: Sequence[CallRecord]) -> list[str]:
        return [result_text(record.result, self._limits.tool_response_characters) for record in records]

    def _runnable(self) -> list[RequestedCall]:
        return [request for request in self._pending if not request.refusal]

    def _leave_unread(self, records: list[CallRecord], finish: Finish) -> None:
        self._unread = records
        self._wait(finish)

    def _wait(self, finish: Finish) -> None:
        self._waiting, self._is_waiting = Waiting(finish), True

    def _append(self, span: Span) -> None:
        self.spans.append(span)
        self.length += tokens.count(span.ids)
        assert self.length <= self._limits.max_tokens, f"{self.id} outgrew its {self._limits.max_tokens} tokens"
