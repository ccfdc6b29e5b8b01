"""The engine protocol: token ids in; token ids with the log-probabilities they were sampled with out.

Invariants:
- weights change only between two steps of the engine; what was sampled before keeps its version, also within a turn;
- log-probabilities are those of the distribution that was sampled from, temperature included;
- no request finds KV that was computed with other weights than those it begins with. One that runs when new weights
  come goes on with the KV it has: its later tokens attend to keys and values of the old weights.

Engines are asynchronous: callers `await sample(...)`, many at once. How an engine spends the time in between
(a real step on a thread, modelled time on a virtual clock) is its own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from policies.scripted import CountedTokens, ScriptedTurn
from policies.trajectory import VersionRun, WeightsVersion


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCapacity:
    """What an engine can hold, as read from the engine itself."""

    kv_blocks: int
    block_tokens: int
    max_sequence_tokens: int
    max_step_tokens: int
    """Tokens of one step, prefill chunks included."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache."""
        return self.kv_blocks * self.block_tokens


class SampleRequest(NamedTuple):
    """Continue a sequence."""

    id: str
    """Unique among the requests in the engine."""
    ids: list[int]
    """The whole history `[L]`."""
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    seed: int
    """Seed of this request's own random stream."""
    counted: CountedTokens | None = None
    """In the simulator: the whole history, in place of `ids`, which are empty then."""
    on_tokens: Callable[[list[int], list[float]], None] | None = None
    """Streaming: called on the event loop after each step of the engine with the request's new ids and their
    log-probabilities, before `sample` returns; together they are the result's. It must neither block nor raise.
    Engines that only count tokens have none to tell of."""


class SampleResult(NamedTuple):
    """What was sampled."""

    ids: list[int]
    """`[N]`, the stop token included if one was sampled; of an aborted request what there was by then."""
    logprobs: list[float]
    """`[N]`."""
    finish: Literal["stop", "length", "aborted"]
    version: WeightsVersion
    """The weights that sampled the last token."""
    earlier: tuple[VersionRun, ...] = ()
    """What other weights had sampled before these came, in order."""
    turn: ScriptedTurn | None = None
    """In the simulator: what the model said, in place of `ids` and `logprobs`, which are empty; None if aborted."""


class EngineUsage(NamedTuple):
    """The engine's load, at one moment and so far."""

    running: int
    kv_used_tokens: int
    generated_tokens: int
    busy_seconds: float
    kv_token_seconds: float
    """KV tokens held, times the seconds that they were held: differences give the mean use over a stretch of time."""
    peak_memory_bytes: int = 0
    """The most memory that the engine's process has ever held; 0 where nothing is held."""


class EngineFailed(RuntimeError):
    """The engine raised in a step; it is of no further use. The text holds the cause."""


class Engine(Protocol):
    """See the module's docstring. Lifecycle: `start`, then anything, then `close`."""

    kind: str
    """For the books: `vllm`, or what is simulated."""

    async def start(self) -> EngineCapacity:
        """Load the model. Raises `EngineFailed`."""
        ...

    async def sample(self, request: SampleRequest) -> SampleResult:
        """One continuation. Raises `EngineFailed`; `ValueError` for a request that can never fit."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a request; its `sample` returns with finish `aborted`. Unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Take no further step until `resume`; requests stay where they are."""
        ...

    async def resume(self) -> None: ...

    async def update_weights(self, version: WeightsVersion, weights: Iterable[tuple[str, Any]]) -> None:
        """Replace the weights, (Hugging Face parameter name, tensor) pairs, before the next step; requests go on."""
        ...

    def usage(self) -> EngineUsage: ...

    def work_done(self) -> int:
        """Changes at least as often as tokens are sampled."""
        ...

    async def close(self) -> None: ...
