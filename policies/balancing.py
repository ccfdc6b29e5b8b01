"""Which rollout runs on which generator, and when it may start: what is said between strategies and their driver.

Strategies are pure state machines: no clock, no randomness of their own, no messages. The balancer actor drives the
same objects that simulations and tests drive. They are in `policies.balancing_strategies`, which makes them by name.

Invariants of every strategy:
- a wish is granted exactly once, or withdrawn;
- a rollout that is in a tool call still holds its lease: its KV comes back with the next turn;
- a wish that can fit nowhere is refused at submission, with the numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Field

from policies.options import Options
from policies.trajectory import Record

StrategyName = Literal[
    "static", "static_async", "round_robin", "least_sessions", "worst_case", "oversubscribed", "predictive"
]


class BalancerOptions(Options):
    """Which strategy grants leases, and its settings; a strategy ignores those of others."""

    strategy: StrategyName = "predictive"
    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each generator's KV capacity that is never promised (worst_case, oversubscribed, predictive). Under
    every strategy a rollout that could come to more than the rest is refused."""
    batch: Annotated[int, Field(ge=1)] = 256
    """static and static_async: rollouts that a generator takes at once; it takes the next ones when all of these are
    done. The default is the paper's 16,384 rollouts on 64 GPUs."""
    coefficient: Annotated[float, Field(gt=0, le=1)] = 0.7
    """oversubscribed: capacity / coefficient is promised. 0.7 is the value of the paper's unreleased scheduler."""
    sigmas: Annotated[float, Field(ge=0)] = 1.0
    """predictive: standard deviations of the predicted demand that are kept free."""


def most_promised(options: BalancerOptions) -> float | None:
    """What a generator may promise, as a multiple of its KV capacity; None if the strategy promises no reserves."""
    match options.strategy:
        case "worst_case":
            return 1.0 - options.headroom
        case "oversubscribed":
            return (1.0 - options.headroom) / options.coefficient
        case _:
            return None


def longest_lease(options: BalancerOptions, kv_tokens: int, block_tokens: int) -> int:
    """Tokens of the longest rollout that may have a lease, on a generator with so many tokens of KV in such blocks.

    An engine rounds `kv_tokens` up to whole blocks, and a lease takes whole ones.
    """
    promised = most_promised(options)
    share = 1.0 - options.headroom if promised is None else min(1.0, promised)
    return int(-(-kv_tokens // block_tokens) * share) * block_tokens


class Wish(Record):
    """A rollout that wants to start."""

    rollout: str
    """Names the rollout and the attempt: a rollout that lost its generator asks again under another name."""
    prompt_tokens: int
    """Tokens that it begins with (of a rollout that lost its generator: its history)."""
    max_tokens: int
    """The most tokens the rollout can come to, its prompt included."""
    group: str = ""
    """Rollouts of one group answer the same problem: their lengths are alike. Empty: it stands alone."""
    generator: str = ""
    """The only generator that will do; empty: any."""


class Lease(Record):
    """The right of a rollout to hold KV cache on one incarnation of one generator, until it is released."""

    rollout: str
    generator: str
    incarnation: int
    reserve: int
    """Tokens of KV promised to the rollout; 0 from strategies that promise nothing."""
    epoch: int
    """The balancer's incarnation that gave it; a later one adopts what rollouts still hold (`Strategy.adopt`)."""
    turn_barrier: bool = False
    """Whether each turn after the first has to wait for the strategy's word (`Strategy.turns`)."""
    wants_progress: bool = False
    """Whether the strategy makes use of `Strategy.progressed`."""


class HeldLease(Record):
    """A lease, as whoever holds it knows it."""

    wish: Wish
    lease: Lease
    tokens: int
    """How long the sequence was after the last turn that was told of."""


class Capacity(Record):
    """What one generator can hold."""

    generator: str
    incarnation: int
    kv_tokens: int
    """Tokens of KV cache, from the engine's real block count."""
    block_tokens: int
    """Tokens per KV block; a sequence occupies whole blocks."""
    max_sequence_tokens: int


class Load(Record):
    """A generator's books, as the strategy keeps them."""

    capacity: Capacity
    promised: int = 0
    """Tokens of KV that its sessions may come to hold, as far as the strategy reckons with it."""
    sessions: int = 0


class Unplaceable(ValueError):
    """A wish that no generator could ever hold."""


class Strategy(Protocol):
    """Decides placement and admission.

    Lifecycle: `generator_joined` for each generator, and `adopt` where books are made anew; then any order of `wish`,
    `withdraw`, `release`, `progressed`, `turn_wish`, `generator_left`, each preceded by `time_is(...)` and followed by
    `grants()`, which returns the leases that can now be given, and `turns()`, which returns the rollouts whose next
    turn may begin.
    """

    def time_is(self, seconds: float) -> None:
        """What time it is when what follows happens; it never goes back, its origin means nothing."""
        ...

    def generator_joined(self, capacity: Capacity) -> None:
        """A generator (or a new incarnation of one) can take rollouts; what an earlier incarnation held is gone."""
        ...

    def generator_left(self, generator: str) -> tuple[str, ...]:
        """A generator is gone. Returns the rollouts whose leases ended with it."""
        ...

    def wish(self, wish: Wish) -> None:
        """Note a wish. Raises `Unplaceable` if no generator, empty, could hold it; repeating a wish changes nothing."""
        ...

    def adopt(self, wish: Wish, lease: Lease) -> Lease | None:
        """Enter a lease that an earlier epoch's books held, and that its rollout holds still; before any new grant.

        Returns it under this epoch; None if its generator is not there any more, or it is known.
        """
        ...

    def withdraw(self, rollout: str) -> None:
        """Forget a wish that was not granted yet; unknown rollouts are ignored."""
        ...

    def release(self, rollout: str, tokens: int | None = None) -> None:
        """End a lease; releasing twice changes nothing.

        `tokens` is the length that the rollout came to, None if it did not come to its end.
        """
        ...

    def progressed(self, rollout: str, tokens: int) -> None:
        """A turn ended and the sequence has `tokens` tokens now; unknown rollouts are ignored."""
        ...

    def turn_wish(self, rollout: str) -> None:
        """The rollout, whose lease has a turn barrier, is ready for its next turn; unknown rollouts are ignored."""
        ...

    def grants(self) -> tuple[Lease, ...]:
        """Leases that can be given now, each returned once."""
        ...

    def turns(self) -> tuple[str, ...]:
        """Rollouts that wished for a turn and may begin it now, each wish answered once."""
        ...

    def loads(self) -> tuple[Load, ...]:
        """The books, by generator, for metrics and tests."""
        ...


def reserve_for(tokens: int, capacity: Capacity) -> int:
    """KV tokens that a sequence of `tokens` occupies: whole blocks."""
    blocks = -(-tokens // capacity.block_tokens)
    return blocks * capacity.block_tokens
