"""The record that everything is about: one multi-turn rollout, down to its tokens.

Invariants (checked when a `Trajectory` is built):
- spans alternate as the dialogue did: prompt first, then model and tool spans; a model turn in which new weights came
  is several model spans in a row, one for each version;
- every model token has the log-probability it was sampled with and the weights version that made it;
  no other token has either;
- `calls` are in the order in which the model made them, each with its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema

from env.tool_call import ToolCall, ToolResult
from policies import tokens
from policies.as_is import as_it_is
from policies.scripted import CountedTokens
from policies.tokens import PackedIds

SCHEMA_VERSION = 1
"""Bumped when stored trajectories change shape; archives carry it."""


class WeightsVersion(NamedTuple):
    """Which weights made a token: restoring a checkpoint starts a new lineage, a learner step the next step."""

    lineage: int
    step: int

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return as_it_is(source, handler)


class VersionRun(NamedTuple):
    """Consecutive tokens of one turn that the same weights sampled."""

    version: WeightsVersion
    tokens: int

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return as_it_is(source, handler)


UNTRAINED = WeightsVersion(lineage=0, step=0)
"""What a run begins with."""


class Record(BaseModel):
    """Base of all stored and sent records: frozen, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(Record):
    """Something to solve, with the answer that counts as right."""

    id: str
    question: str
    gold: str
    family: str = ""
    """Which generator or data set it came from; evaluations report accuracy by family."""


class Span(Record):
    """A run of tokens with one origin."""

    kind: Literal["prompt", "model", "tool"]
    ids: PackedIds
    """int32 `[L]`, packed (`policies.tokens`); in a simulator, counted."""
    logprobs: bytes = b""
    """float32 `[L]` for model spans, empty otherwise: as sampled, temperature included. Counted tokens have none."""
    version: WeightsVersion | None = None
    """The weights that sampled a model span; None otherwise."""

    @model_validator(mode="after")
    def _only_model_tokens_were_sampled(self) -> Span:
        if self.kind == "model":
            ids, logprobs = self.ids, self.logprobs
            if logprobs if isinstance(ids, CountedTokens) else tokens.count(logprobs) != tokens.count(ids):
                raise ValueError(
                    f"a model span of {tokens.count(ids)} tokens has "
                    f"{tokens.count(logprobs)} log-probabilities; "
                    "give one for each token"
                )
            if self.version is None:
                raise ValueError("a model span needs `version`, the weights that sampled it")
        elif self.logprobs or self.version is not None:
            raise ValueError(f"a {self.kind} span was not sampled: leave `logprobs` and `version` out")
        else:
            tokens.count(self.ids)  # a whole number of them
        return self


def turn_spans(
    ids: PackedIds, logprobs: bytes, version: WeightsVersion, earlier: Sequence[VersionRun] = ()
) -> list[Span]:
    """The spans of one model turn.

    Args:
        ids: int32 `[L]`.
        logprobs: float32 `[L]`.
        version: the weights that sampled the last token.
        earlier: what other weights had sampled before these came, in order.
    """
    if not earlier:
        return [Span(kind="model", ids=ids, logprobs=logprobs, version=version)]
    runs = [*earlier, VersionRun(version, tokens.count(ids) - sum(run.tokens for run in earlier))]
    spans, begin = list[Span](), 0
    for run in runs:
        end = begin + run.tokens
        part = Span(
            kind="model",
            ids=tokens.part(ids, begin, end),
            logprobs=logprobs[4 * begin : 4 * end],
            version=run.version,
        )
        spans.append(part)
        begin = end
    return spans


def whole_turns(spans: Sequence[Span]) -> list[tuple[Span, ...]]:
    """Spans with those of one model turn together; others stand alone. Two model turns never touch."""
    turns: list[tuple[Span, ...]] = []
    for span in spans:
        if span.kind == "model" and turns and turns[-1][-1].kind == "model":
            turns[-1] = (*turns[-1], span)
        else:
            turns.append((span,))
    return turns


def version_runs(spans: Sequence[Span]) -> tuple[VersionRun, ...]:
    """Which weights sampled the tokens of model spans; of others there is nothing to say."""
    return tuple(VersionRun(span.version, tokens.count(span.ids)) for span in spans if span.version is not None)


class CallRecord(Record):
    """A tool call as it happened: in which model turn (from 0), what was asked, what came back."""

    turn: int
    call: ToolCall
    result: ToolResult

    @model_validator(mode="after")
    def _is_the_result_of_the_call(self) -> CallRecord:
        if self.call.id != self.result.id:
            raise ValueError(f"call {self.call.id!r} has the result of {self.result.id!r}")
        return self


Finish = Literal[
    "answered",  # the last turn ended without a tool call
    "length",  # the token budget ran out
    "turns",  # the turn budget ran out
    "interrupted",  # a user stopped the last turn (in chats)
    "sandbox_failure",  # the sandbox failed on every try: the rollout is void and counted nowhere
]


class Verdict(Record):
    """Whether an answer is right, and how that was decided."""

    correct: bool
    extracted: str = ""
    reason: Literal["right", "wrong", "unparsable", "no_answer", "timed_out"]


class Trajectory(Record):
    """One finished rollout."""

    model_config = ConfigDict(allow_inf_nan=False)

    id: str
    """`stage/step/group/sample`, unique within a run."""
    group: str
    """Rollouts of one group answered the same problem in the same step."""
    sample: int
    """Index within the group, from 0."""
    stage: str
    step: int
    """The optimiser step that this rollout was made for; evaluations number theirs from 0."""
    problem: Problem
    spans: tuple[Span, ...]
    calls: tuple[CallRecord, ...] = ()
    turns: int
    """Model turns, from the trajectory's structure (not from its text)."""
    answer_tags: int
    """Answer blocks in model turns (the format penalty counts them)."""
    finish: Finish
    verdict: Verdict
    reward: float
    generator: str
    """Name of the generator actor that held the lease."""
    waited_seconds: float = 0.0
    """Seconds from the wish for a lease to its grant."""
    queued: bool = False
    """Whether the lease could not be granted at once."""

    @model_validator(mode="after")
    def _starts_with_its_prompt(self) -> Trajectory:
        if not self.spans or self.spans[0].kind != "prompt":
            raise ValueError(
                "a trajectory's first span is its prompt; got " + ", ".join(s.kind for s in self.spans[:3])
            )
        return self

    @property
    def response_tokens(self) -> int:
        """Tokens after the prompt, model and tool together."""
        return sum([tokens.count(span.ids) for span in self.spans[1:]])

    @property
    def model_tokens(self) -> int:
        """Tokens that the model sampled."""
        return sum([tokens.count(span.ids) for span in self.spans if span.kind == "model"])

    @property
    def versions(self) -> tuple[WeightsVersion, ...]:
        """All weights that sampled a token of it, in the order in which they did."""
        return tuple(dict.fromkeys([span.version for span in self.spans if span.version is not None]))

    @property
    def tool_errors(self) -> int:
        """Calls that count as errors."""
        return sum([record.result.is_tool_error for record in self.calls])

    @property
    def truncated(self) -> bool:
        """Whether a budget of tokens or turns ended it."""
        return self.finish in ("length", "turns")

    @property
    def has_void_turn(self) -> bool:
        """Whether the model ended a turn that held neither a call nor an answer.

        A turn without a call ends the dialogue, so only the last can be one. A turn that a budget cut off is not void:
        nobody knows what it would have held.
        """
        return self.finish == "answered" and self.verdict.reason == "no_answer"

    @property
    def duplicate_calls(self) -> int:
        """Calls that ask for just what an earlier call of this rollout asked for."""
        asked = {(record.call.tool, record.call.code, record.call.input) for record in self.calls}
        return len(self.calls) - len(asked)
