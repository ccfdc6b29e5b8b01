"""What a simulated model says: turns known by their sizes, in place of text.

Invariants:
- only the simulated engine reads a script; actors and strategies learn a turn's length when it has been sampled;
- two sequences share exactly the tokens of their prompt if they name the same prompt, and no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from policies.as_is import as_it_is


class CountedTokens(NamedTuple):
    """A token sequence of which only the size and the origin are known."""

    prompt: str
    """Names the prompt: sequences of one prompt begin with the same tokens."""
    prompt_tokens: int
    sequence: str
    """Names what follows the prompt: the rollout."""
    turns: int
    """Model turns that it holds so far; the next one to sample has this index."""
    length: int
    """Tokens, prompt included."""
    skip: int = 0
    """Tokens at the beginning that are left out: a span of a sequence is its end, so far."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return as_it_is(source, handler)

    def grown(self, tokens: int, turns: int = 0) -> CountedTokens:
        """The sequence with `tokens` more, which hold `turns` more model turns."""
        prompt, prompt_tokens, sequence, before, length, skip = self
        return _counted((prompt, prompt_tokens, sequence, before + turns, length + tokens, skip))

    def without(self, tokens: int) -> CountedTokens:
        """The end of the sequence, `tokens` at its beginning left out."""
        return _counted((*self[:-1], tokens))


_counted = partial(tuple.__new__, CountedTokens)
"""As `CountedTokens._make`, without a step of the interpreter: there are hundreds of thousands of these."""


class ScriptedCall(NamedTuple):
    """A tool call that a scripted turn makes."""

    run_seconds: float
    """Time that the interpreter takes."""
    status: str
    """A status of `env.tool_call.ToolResult`."""
    response_tokens: int
    """Tokens of the response that the model reads, delimiters included."""


class ScriptedTurn(NamedTuple):
    """One model turn, as a workload has it."""

    n_tokens: int
    """At least 1, the token that ends the turn included; the engine cuts it at the request's `max_tokens`."""
    calls: tuple[ScriptedCall, ...] = ()
    correct: bool = False
    """Of a turn without calls: whether its answer is right."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return as_it_is(source, handler)


class Rollout(NamedTuple):
    """All that one rollout would say."""

    prompt_tokens: int
    turns: tuple[ScriptedTurn, ...]
    """The last one makes no calls."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole sequence, if nothing stops it."""
        said = sum(turn.n_tokens + sum(call.response_tokens for call in turn.calls) for turn in self.turns)
        return self.prompt_tokens + said


class Script(ABC):
    """Where turns come from: a profile (`policies.workloads`), or a stored archive (`policies.recorded_workload`)."""

    @abstractmethod
    def rollout(self, sequence: str) -> Rollout:
        """What the rollout `stage/step/problem/sample` would say; asking again gives the same.

        Raises `KeyError` for a stage that this script does not have.
        """

    def turn(self, sequence: str, index: int) -> ScriptedTurn:
        """Model turn `index` (from 0) of the rollout `sequence`."""
        return self.rollout(sequence).turns[index]

    def call(self, call_id: str) -> ScriptedCall:
        """What comes of the call `ROLLOUT/TURN/INDEX`."""
        sequence, turn, index = call_id.rsplit("/", 2)
        return self.turn(sequence, int(turn)).calls[int(index)]
