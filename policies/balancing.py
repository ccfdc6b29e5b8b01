"""Which rollout runs on which generator, and when it may start.

Invariants of every strategy:
- promised tokens of a generator never exceed its capacity;
- a wish is granted exactly once, or withdrawn; grants keep the order of wishes that fit equally well;
- a rollout that is in a tool call still holds its lease: its KV comes back with the next turn;
- a wish that can fit nowhere is refused at submission, with the numbers.

Strategies are pure state machines: no clock, no randomness of their own, no messages. The balancer actor
drives the same objects that simulations and tests drive.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal, Protocol

from pydantic import Field

from policies.options import Options
from policies.trajectory import Record


class BalancerOptions(Options):
    """Which strategy grants leases."""

    strategy: Literal["worst_case"] = "worst_case"
    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each generator's KV capacity that is never promised."""


class Wish(Record):
    """A rollout that wants to start."""

    rollout: str
    """Names the rollout and the attempt: a rollout that lost its generator asks again under another name."""
    prompt_tokens: int
    max_tokens: int
    """The most tokens the rollout can come to, its prompt included."""


class Lease(Record):
    """The right of a rollout to hold KV cache on one incarnation of one generator, until it is released."""

    rollout: str
    generator: str
    incarnation: int
    reserve: int
    """Tokens of KV promised to the rollout."""
    epoch: int
    """The balancer's incarnation: a lease of an earlier epoch is no longer good."""


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
    sessions: int = 0


class Unplaceable(ValueError):
    """A wish that no generator could ever hold."""


class Strategy(Protocol):
    """Decides placement and admission.

    Lifecycle: `generator_joined` for each generator; then any order of `wish`, `withdraw`, `release`,
    `generator_left`, each followed by `grants()`, which returns the leases that can now be given.
    """

    def generator_joined(self, capacity: Capacity) -> None:
        """A generator (or a new incarnation of one) can take rollouts; what an earlier incarnation held is gone."""
        ...

    def generator_left(self, generator: str) -> tuple[str, ...]:
        """A generator is gone. Returns the rollouts whose leases ended with it."""
        ...

    def wish(self, wish: Wish) -> None:
        """Note a wish. Raises `Unplaceable` if no generator, empty, could hold it; repeating a wish changes nothing."""
        ...

    def withdraw(self, rollout: str) -> None:
        """Forget a wish that was not granted yet; unknown rollouts are ignored."""
        ...

    def release(self, rollout: str) -> None:
        """End a lease; releasing twice changes nothing."""
        ...

    def grants(self) -> tuple[Lease, ...]:
        """Leases that can be given now, each returned once."""
        ...

    def loads(self) -> tuple[Load, ...]:
        """The books, by generator, for metrics and tests."""
        ...


def reserve_for(tokens: int, capacity: Capacity) -> int:
    """KV tokens that a sequence of `tokens` occupies: whole blocks."""
    blocks = -(-tokens // capacity.block_tokens)
    return blocks * capacity.block_tokens


class WorstCase:
    """Reserves the most that each rollout could need (the paper's K per GPU), first come first served.

    Nothing is ever preempted, at the price of KV that stays idle. Ties go to the generator chosen least
    recently, so that a burst spreads instead of herding.
    """

    def __init__(self, options: BalancerOptions, epoch: int = 0) -> None:
        self._options = options
        self._epoch = epoch
        self._loads: dict[str, Load] = {}
        self._waiting: OrderedDict[str, Wish] = OrderedDict()
        self._leases: dict[str, Lease] = {}
        self._last_chosen: dict[str, int] = {}
        self._choices = 0

    def generator_joined(self, capacity: Capacity) -> None:
        self.generator_left(capacity.generator)
        self._loads[capacity.generator] = Load(capacity=capacity)
        self._last_chosen.setdefault(capacity.generator, -1)

    def generator_left(self, generator: str) -> tuple[str, ...]:
        ended = tuple(rollout for rollout, lease in self._leases.items() if lease.generator == generator)
        for rollout in ended:
            del self._leases[rollout]
        self._loads.pop(generator, None)
        return ended

    def wish(self, wish: Wish) -> None:
        if wish.rollout in self._waiting or wish.rollout in self._leases:
            return
        if self._loads and not any(self._fits(wish, Load(capacity=load.capacity)) for load in self._loads.values()):
            largest = max(self._budget(load.capacity) for load in self._loads.values())
            longest = max(load.capacity.max_sequence_tokens for load in self._loads.values())
            raise Unplaceable(
                f"rollout {wish.rollout} may need {wish.max_tokens} tokens, "
                f"but the largest generator can promise {largest} "
                f"(sequences of at most {longest}); lower the stage's max_tokens or give generators more KV cache"
            )
        self._waiting[wish.rollout] = wish

    def withdraw(self, rollout: str) -> None:
        self._waiting.pop(rollout, None)

    def release(self, rollout: str) -> None:
        lease = self._leases.pop(rollout, None)
        if lease is None:
            return
        load = self._loads[lease.generator]
        self._loads[lease.generator] = load.model_copy(
            update={"promised": load.promised - lease.reserve, "sessions": load.sessions - 1}
        )

    def grants(self) -> tuple[Lease, ...]:
        granted = []
        while self._waiting:
            wish = next(iter(self._waiting.values()))
            name = self._place(wish)
            if name is None:
                break  # first come, first served: a smaller wish further back must not starve this one
            del self._waiting[wish.rollout]
            granted.append(self._grant(wish, name))
        return tuple(granted)

    def loads(self) -> tuple[Load, ...]:
        return tuple(self._loads[name] for name in sorted(self._loads))

    def _place(self, wish: Wish) -> str | None:
        fitting = [name for name, load in self._loads.items() if self._fits(wish, load)]
        if not fitting:
            return None
        return max(fitting, key=lambda name: (self._free(self._loads[name]), -self._last_chosen[name], name))

    def _grant(self, wish: Wish, name: str) -> Lease:
        load = self._loads[name]
        reserve = reserve_for(wish.max_tokens, load.capacity)
        self._loads[name] = load.model_copy(update={"promised": load.promised + reserve, "sessions": load.sessions + 1})
        assert self._free(self._loads[name]) >= 0, f"{name} has promised more KV than it has"
        self._choices += 1
        self._last_chosen[name] = self._choices
        lease = Lease(
            rollout=wish.rollout,
            generator=name,
            incarnation=load.capacity.incarnation,
            reserve=reserve,
            epoch=self._epoch,
        )
        self._leases[wish.rollout] = lease
        return lease

    def _budget(self, capacity: Capacity) -> int:
        return int(capacity.kv_tokens * (1 - self._options.headroom))

    def _free(self, load: Load) -> int:
        return self._budget(load.capacity) - load.promised

    def _fits(self, wish: Wish, load: Load) -> bool:
        capacity = load.capacity
        return wish.max_tokens <= capacity.max_sequence_tokens and reserve_for(wish.max_tokens, capacity) <= self._free(
            load
        )


def make_strategy(options: BalancerOptions, epoch: int = 0) -> Strategy:
    """The strategy that a recipe names."""
    return {"worst_case": WorstCase}[options.strategy](options, epoch)
