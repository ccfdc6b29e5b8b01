"""What goes into and comes out of an engine's scheduler: limits, requests, results, counts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from policies.options import Options


class BatchingLimits(Options):
    """What an engine can hold and do at once."""

    kv_blocks: Annotated[int, Field(ge=1)]
    block_tokens: Annotated[int, Field(ge=1)] = 16
    max_running: Annotated[int, Field(ge=1)] = 256
    """Sequences that may run at once (vLLM's `max_num_seqs`)."""
    max_step_tokens: Annotated[int, Field(ge=1)] = 8192
    """Tokens of one step, prefill chunks included (`max_num_batched_tokens`)."""
    prefix_caching: bool = True

    @model_validator(mode="after")
    def _all_running_can_decode(self) -> BatchingLimits:
        if self.max_step_tokens < self.max_running:
            raise ValueError(
                f"max_step_tokens={self.max_step_tokens} is less than max_running={self.max_running}; "
                "raise the former: each running sequence needs a token of every step"
            )
        return self


class Turn(NamedTuple):
    """A request: continue a sequence of `length` tokens by `new_tokens`."""

    id: str
    """Unique among the requests in the engine."""
    prompt: Hashable
    """Sequences with equal prompts begin with the same `prompt_tokens` tokens."""
    prompt_tokens: int
    sequence: Hashable
    """Names what follows the prompt."""
    length: int
    new_tokens: int


class Sampled(NamedTuple):
    """A request that has left the engine with what it generated."""

    id: str
    tokens: int


@dataclass(slots=True)
class BatchingCounts:
    """What happened so far."""

    admissions: int = 0
    """Resumed sequences count again."""
    preemptions: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    """Prompt (and history) tokens computed, recomputed ones included."""
    recomputed_tokens: int = 0
    """Of these, tokens that had been computed in the same turn and were lost to a preemption."""
    lookup_tokens: int = 0
    """Tokens of admitted sequences."""
    hit_tokens: int = 0
    """Of these, tokens found in the prefix cache."""
