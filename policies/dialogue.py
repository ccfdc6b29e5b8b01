"""One multi-turn rollout as a pure state machine: no clock, no tasks, no messages.

    dialogue = Dialogue(...)
    while not isinstance(action := dialogue.next_action(), Finished):
        match action:
            case Sample(): dialogue.sampled(ids, logprobs, version)
            case Execute(): dialogue.executed(results)
            case Verify(): dialogue.verified(verdict)

Invariants:
- the history is token ids that only grow; what the model sampled is never re-encoded;
- the sequence never becomes longer than `max_tokens`: a tool response that does not fit ends the dialogue;
- each requested call has exactly one result before the next turn begins.

These are rules of `TurnTaking`, which chats with a user (`policies.conversation`) follow too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from env.tool_call import PYTHON_TOOL, ToolCall, ToolName, ToolResult
from policies import tokens
from policies.chat_format import ChatFormat
from policies.options import LimitOptions
from policies.tokens import PackedIds
from policies.tool_calls import RequestedCall, parse_calls, result_text
from policies.trajectory import (
    CallRecord,
    Finish,
    Problem,
    Span,
    Verdict,
    VersionRun,
    WeightsVersion,
    turn_spans,
)
from policies.verification import count_answers, extract_answer, judge_at_sight

NO_ANSWER = Verdict(correct=False, reason="no_answer")
TOOLS_OFF = "tools are switched off in this run: answer without running code"


class DialogueLimits(LimitOptions):
    """The limits of one dialogue."""

    tools: tuple[ToolName, ...] = (PYTHON_TOOL,)
    """What the model may call; without any, each call is answered by a refusal."""


class Sample(NamedTuple):
    """The model's turn: continue the history by at most `max_tokens`."""

    turn: int
    max_tokens: int


class Execute(NamedTuple):
    """Run these calls; the answer has one result for each, in order."""

    calls: tuple[ToolCall, ...]


class Verify(NamedTuple):
    """Compare this answer with the gold, where comparing may take long; no more tokens will come."""

    extracted: str
    gold: str


class Finished(NamedTuple):
    """The dialogue is over."""

    finish: Finish
    verdict: Verdict


class Turn(NamedTuple):
    """What was read of a model turn."""

    ended: bool
    """Whether the model ended it, rather than running out of tokens."""
    calls: list[RequestedCall]
    answer_tags: int


class TurnTaking(ABC):
    """What rollouts and chats have in common: a history in spans, the model's turns, and the calls that these make.

    Subclasses say what comes after a turn that makes no calls, and what if the model can't go on.
    """

    _chat: ChatFormat

    def _begin(self, id: str, limits: DialogueLimits) -> None:
        self.id, self._limits = id, limits
        self.spans: list[Span] = []
        self.calls: list[CallRecord] = []
        self.turns = self.answer_tags = self.length = 0
        self._uncounted_turns = 0
        """Model turns that `max_turns` does not count."""
        self._last_turn = ""
        self._pending: list[RequestedCall] = []

    @abstractmethod
    def _goes_on(self) -> bool:
        """Whether the model, or its code, is to go on."""

    @abstractmethod
    def _answered(self) -> None:
        """The last turn made no calls."""

    @abstractmethod
    def _stopped(self, finish: Finish, unread: list[CallRecord]) -> None:
        """The model can't go on; `unread` are results of its last turn that it has not read."""

    def _next(self) -> Sample | Execute:
        """What has to happen next, while it goes on."""
        if self._pending:
            return Execute(tuple(request.call for request in self._runnable()))
        return Sample(self.turns, min(self._limits.max_turn_tokens, self._limits.max_tokens - self.length))

    def sampled(
        self, ids: PackedIds, logprobs: bytes, version: WeightsVersion, earlier: Sequence[VersionRun] = ()
    ) -> None:
        """Take in a model turn; the arguments are those of `turn_spans`."""
        assert self._goes_on() and not self._pending, "a model turn came when none was due"
        turn = self._take(ids, logprobs, version, earlier)
        if not turn.ended:
            self._stopped("length", [])
            return
        self._pending = turn.calls
        if not self._limits.tools:
            self._pending = [request._replace(refusal=TOOLS_OFF) for request in self._pending]
        if not self._pending:
            self._answered()
        elif not self._runnable():
            self.executed(())

    def executed(self, results: Sequence[ToolResult]) -> None:
        """Take in the results of the calls of `Execute`, in order."""
        records = self._record(results)
        if any(record.result.status == "sandbox_failure" for record in records):
            self._stopped("sandbox_failure", records)
            return
        response = self._respond(records)
        if self.length + tokens.count(response) >= self._limits.max_tokens:
            self._stopped("length", records)
        elif self.turns - self._uncounted_turns >= self._limits.max_turns:
            self._stopped("turns", records)
        else:
            self._append(Span(kind="tool", ids=response))

    def _take(
        self, ids: PackedIds, logprobs: bytes, version: WeightsVersion, earlier: Sequence[VersionRun] = ()
    ) -> Turn:
        """Append what the model has said, and read it."""
        for span in turn_spans(ids, logprobs, version, earlier):
            self._append(span)
        self.turns += 1
        turn = self._read(ids)
        self.answer_tags += turn.answer_tags
        return turn

    def _record(self, results: Sequence[ToolResult]) -> list[CallRecord]:
        """Enter the results of the pending calls, those that are refused included."""
        ran = {result.id: result for result in results}
        turn = self.turns - 1
        records = [
            CallRecord(
                turn=turn, call=request.call, result=request.refused() if request.refusal else ran[request.call.id]
            )
            for request in self._pending
        ]
        self._pending = []
        self.calls += records
        return records

    def _read(self, ids: PackedIds) -> Turn:
        """What the model has said in its turn."""
        unpacked = tokens.unpack_ids(ids)
        text = self._last_turn = self._chat.decode(unpacked)
        return Turn(
            ended=bool(unpacked) and unpacked[-1] in self._chat.stop_ids,
            calls=parse_calls(
                text, f"{self.id}/{self.turns - 1}", self._limits.call, self._limits.tools, session=self.id
            ),
            answer_tags=count_answers(text),
        )

    def _respond(self, records: list[CallRecord]) -> PackedIds:
        """What the model reads of the results of its calls."""
        return tokens.pack_ids(self._chat.tool_turn(self._texts(records)))

    def _texts(self, records: Sequence[CallRecord]) -> list[str]:
        return [result_text(record.result, self._limits.tool_response_characters) for record in records]

    def _runnable(self) -> list[RequestedCall]:
        return [request for request in self._pending if not request.refusal]

    def _append(self, span: Span) -> None:
        self.spans.append(span)
        self.length += tokens.count(span.ids)
        assert self.length <= self._limits.max_tokens, f"{self.id} outgrew its {self._limits.max_tokens} tokens"


class Dialogue(TurnTaking):
    """See the module's docstring.

    Raises `ValueError` if the prompt leaves no room for a single token.
    """

    def __init__(self, *, id: str, chat: ChatFormat, problem: Problem, limits: DialogueLimits) -> None:
        self._chat = chat
        self._open(id, problem, limits, tokens.pack_ids(chat.prompt(problem.question, limits.tools)))

    def _open(self, id: str, problem: Problem, limits: DialogueLimits, prompt: PackedIds) -> None:
        self._begin(id, limits)
        self.problem = problem
        self._finish: Finish | None = None
        self._extracted: str | None = None
        self._verdict: Verdict | None = None
        if tokens.count(prompt) >= limits.max_tokens:
            raise ValueError(
                f"problem {problem.id}: its prompt has {tokens.count(prompt)} tokens, "
                f"but max_tokens is {limits.max_tokens}; raise it"
            )
        self._append(Span(kind="prompt", ids=prompt))

    @property
    def ended(self) -> bool:
        """Whether nothing will be sampled any more; an answer may still have to be compared."""
        return self._finish is not None

    def next_action(self) -> Sample | Execute | Verify | Finished:
        """What has to happen next; asking again changes nothing."""
        if self._finish is not None:
            if self._verdict is not None:
                return Finished(self._finish, self._verdict)
            assert self._extracted is not None, "only an answer has to be compared"
            return Verify(self._extracted, self.problem.gold)
        return self._next()

    def verified(self, verdict: Verdict) -> None:
        """Take in the verdict on the answer of `Verify`."""
        assert self._finish is not None and self._verdict is None, "a verdict came when none was due"
        self._verdict = verdict

    def ids_from(self, known: int) -> bytes:
        """The history from token `known` on, packed."""
        return tokens.concatenate(span.ids for span in self.spans)[4 * known :]

    def _goes_on(self) -> bool:
        return self._finish is None

    def _answered(self) -> None:
        self._end("answered", self._judge())

    def _stopped(self, finish: Finish, unread: list[CallRecord]) -> None:
        self._end(finish)

    def _judge(self) -> Verdict | None:
        """Whether the answer of the last turn is right; None if that can't be seen without comparing."""
        self._extracted = extract_answer(self._last_turn)
        return judge_at_sight(self._extracted, self.problem.gold)

    def _end(self, finish: Finish, verdict: Verdict | None = NO_ANSWER) -> None:
        """No more turns; without a verdict the answer is still to be compared."""
        self._finish, self._verdict = finish, verdict
