"""What generators are asked, and what they answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request
from policies.balancing import Capacity, Lease
from policies.scripted import CountedTokens, ScriptedTurn
from policies.trajectory import VersionRun, WeightsVersion
from policies.waves import Seat


class TurnSampled(Message, tag="generator.sampled"):
    """One model turn, or the news that the generator lacks the history it was to continue."""

    ids: bytes = b""
    """int32 `[L]`."""
    logprobs: bytes = b""
    """float32 `[L]`."""
    finish: Literal["stop", "length", "history_missing", "aborted"]
    version: WeightsVersion
    """The weights that sampled the last token."""
    earlier: tuple[VersionRun, ...] = ()
    """What other weights had sampled of it before these came, in order."""
    turn: ScriptedTurn | None = None
    """In the simulator: what the model said, in place of ids and log-probabilities."""


class SampleTurn(Request[TurnSampled], tag="generator.sample"):
    """Continue a rollout by one model turn.

    `known` tokens are already at the generator; `ids` are those after them. A generator that does not hold just
    `known` tokens of this rollout answers `history_missing`, and the rollout sends everything with `known = 0`.
    """

    lease: Lease
    turn: int
    known: int
    ids: bytes
    """int32 `[L]`."""
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    """Token ids that end the turn (and are part of it)."""
    seed: int
    counted: CountedTokens | None = None
    """In the simulator: the whole history, whatever is known, in place of `ids`."""
    seat: Seat | None = None
    """In a deterministic run: the turn begins with those of the other rollouts of its wave."""


class ForgetOwner(Request[Done], tag="generator.forget_owner"):
    """An incarnation of a rollout actor is gone: forget all of its rollouts."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    owner: str
    """`NAME-INCARNATION`, as names of leases have it."""


class ForgetRollout(Request[Done], tag="generator.forget"):
    """The rollout is over: abort what runs for it and drop its history."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str


class LeaveWave(Request[Done], tag="generator.leave_wave"):
    """The rollout of a seat was given up: the others must not wait for it."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    seat: Seat


class GeneratorStatus(Message, tag="generator.status"):
    capacity: Capacity
    engine: str
    """Kind of engine, for the books: `vllm`, or the name of a simulated one."""
    running: int
    """Turns in the engine now."""
    turns_served: int
    generated_tokens: int
    busy_seconds: float
    """Seconds in which the engine had work."""
    kv_token_seconds: float
    """As in `EngineUsage`."""
    peak_memory_bytes: int
    """The most memory that the engine's process has held; 0 if simulated."""
    version: WeightsVersion


class DescribeGenerator(Request[GeneratorStatus], tag="generator.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"


class UpdateWeights(Request[Done], tag="generator.update"):
    """Replace the weights between two engine steps; turns in flight keep the tokens they have."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    version: WeightsVersion
    blob: str
    """Key of a blob: a dict of parameter name to tensor, in Hugging Face naming."""
