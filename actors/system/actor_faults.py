"""ActorFault plans: what goes wrong in a run, when, and for whom. Data, drawn from a seed, and printed in full.

Invariants:
- a plan is all that a faulty run needs besides its recipe: the same plan gives the same run;
- any part of a plan is a plan: so a failing one can be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actors.system.actor import seed_for
from env.host_state import Role as SandboxRole

ActorFaultKind = Literal[
    "kill",  # the actor's process ends; the stage restarts it if its part allows
    "freeze",  # the actor hears and says nothing for `seconds`
    "slow",  # for `seconds`, the actor and all below it run only one turn in `times`
    "delay",  # messages to the actor arrive `seconds` later; those behind them in the lane wait
    "drop",  # frames to the actor are lost, and sent again by the mailbox
    "double",  # the actor gets messages twice, as after a resend
    "lose",  # messages to the actor never arrive: asks fail with `ActorLost` when the mailbox gives up
    "squeeze",  # an environment's sandbox gets no more memory, so that the kernel kills in it
    "fill",  # the file system of the run's folder is full
]
ProcessRole = Literal["actor", SandboxRole, "node", "raylet"]

SANDBOX_ROLES: tuple[ProcessRole, ...] = get_args(SandboxRole)
_FITTING: dict[ActorFaultKind, tuple[ProcessRole, ...]] = {
    "kill": ("actor", *SANDBOX_ROLES, "raylet"),
    "freeze": ("actor", *SANDBOX_ROLES),
    "slow": ("actor", "node"),
}
"""Which processes a fault may be meant for; those that are not named here, only the actor."""
MESSAGE_KINDS: tuple[ActorFaultKind, ...] = ("delay", "drop", "double", "lose")
LASTING_KINDS: tuple[ActorFaultKind, ...] = ("freeze", "slow", "squeeze", "fill")
"""Those that hold for `seconds`."""
ENVIRONMENTS = "environment-*"
"""Who has a sandbox."""
SLOW_TURN_S = 0.4
"""In each turn of this length, whoever is slow runs for one part in `times`, and not for the rest."""


class ActorFault(BaseModel):
    """One thing that goes wrong, or the same one again and again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ActorFaultKind
    at: Annotated[float, Field(ge=0)]
    """Seconds of the run's clock."""
    actor: str = ""
    """Name of the actor that is hit; `*` and `?` match any, as in file names, and one of those that match is drawn.
    `fill` hits none."""
    every: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which it happens again, until the run's end."""
    process: ProcessRole = "actor"
    """Which process: the actor's own; one of the sandbox below it (`env.host_state`); for `slow`, `node`: all actors on
    its node; for `kill`, `raylet`: that of its node. All but the actor's own are real only."""
    messages: Annotated[int, Field(ge=1)] = 1
    """How many messages are hit, from `at` on (`delay`, `drop`, `double`, `lose`)."""
    seconds: Annotated[float, Field(ge=0)] = 1.0
    """How long (`freeze`, `slow`, `squeeze`, `fill`, `delay`)."""
    times: Annotated[float, Field(gt=1)] = 4.0
    """How many times as slow (`slow`)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fitting = _FITTING.get(self.kind, ("actor",))
        if self.process not in fitting:
            raise ValueError(
                f"process is {self.process!r}, which {self.kind!r} can't be meant for; it may be {', '.join(fitting)}"
            )
        if self.kind == "fill" and self.actor:
            raise ValueError(f"actor is {self.actor!r}, but 'fill' hits the run's folder; leave `actor` out")
        if self.kind != "fill" and not self.actor:
            raise ValueError(f"actor is empty; name whom {self.kind!r} is to hit, such as 'generator-*'")
        return self

    def candidates(self, actors: Sequence[str]) -> list[str]:
        """Those of `actors` that it may hit. Raises `ValueError` if there is none."""
        if self.kind == "squeeze" or self.process in SANDBOX_ROLES:
            actors = [name for name in actors if fnmatchcase(name, ENVIRONMENTS)]
        fitting = [name for name in actors if fnmatchcase(name, self.actor)]
        if not fitting:
            raise ValueError(f"a fault is meant for {self.actor!r}, but those that it may hit are {', '.join(actors)}")
        return fitting

    def __str__(self) -> str:
        how = f" {self.times:g} times" if self.kind == "slow" else ""
        how += f" for {self.seconds:g} s" if self.kind in (*LASTING_KINDS, "delay") else ""
        many = f" {self.messages} messages" if self.kind in MESSAGE_KINDS else ""
        again = "" if self.every is None else f", and every {self.every:g} s"
        whom = self.actor if self.process == "actor" else f"{self.process} of {self.actor}"
        return f"at {self.at:.3f} s{again}: {self.kind}{many} {whom or 'the run folder'}{how}"


class ActorFaultPlan(BaseModel):
    """All faults of a run, in the order of their times."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: tuple[ActorFault, ...] = ()

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        actors: Sequence[str],
        until: float,
        most: int = 8,
        kinds: Sequence[ActorFaultKind] = ("kill", "freeze", "slow", "delay", "drop", "double", "lose"),
        killable: Sequence[str] | None = None,
    ) -> ActorFaultPlan:
        """A plan of 1 to `most` faults that begin before `until` seconds.

        `killable` names the actors that may be killed (default: all of `actors`).
        """
        rng = Random(seed_for(seed, "faults"))
        drawn = [
            _draw(rng, list(actors), list(actors if killable is None else killable), until, list(kinds))
            for _ in range(rng.randint(1, most))
        ]
        return cls(faults=tuple(sorted(drawn, key=lambda fault: (fault.at, fault.actor, fault.kind))))

    def spelled_out(self, seed: int, *, actors: Sequence[str], until: float) -> ActorFaultPlan:
        """The faults before `until` seconds, one by one: with the actors drawn, and the repeated ones as many.

        Raises `ValueError` for a fault that no actor fits.
        """
        single: list[ActorFault] = []
        for index, fault in enumerate(self.faults):
            draw, at = Random(seed_for(seed, f"fault-{index}")), fault.at
            while at < until:
                actor = draw.choice(fault.candidates(actors))
                single.append(fault.model_copy(update={"at": at, "actor": actor, "every": None}))
                if fault.every is None:
                    break
                at += fault.every
        return ActorFaultPlan(faults=tuple(sorted(single, key=lambda each: (each.at, each.actor, each.kind))))

    def without(self, part: slice) -> ActorFaultPlan:
        """The plan without some of its faults."""
        left = list(self.faults)
        del left[part]
        return ActorFaultPlan(faults=tuple(left))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults)) or "no faults"


def _draw(rng: Random, actors: list[str], killable: list[str], until: float, kinds: list[ActorFaultKind]) -> ActorFault:
    kind = rng.choice(kinds)
    environments = [name for name in actors if fnmatchcase(name, ENVIRONMENTS)]
    fitting = {"kill": killable, "squeeze": environments}.get(kind, actors)
    if not fitting:
        kind, fitting = "delay", actors
    return ActorFault(
        kind=kind,
        at=round(rng.uniform(0, until), 3),
        actor=rng.choice(fitting),
        messages=rng.randint(1, 5),
        seconds=round(rng.choice([0.01, 0.3, 3.0, 20.0]) * rng.uniform(0.5, 1.5), 3),
        times=rng.choice([2.0, 4.0, 8.0]),
    )


def shrink(plan: ActorFaultPlan, fails: Callable[[ActorFaultPlan], bool]) -> ActorFaultPlan:
    """A plan that still fails and of which no fault can be left out (delta debugging; Zeller, Hildebrandt 2002)."""
    assert fails(plan), "only a plan that fails can be shrunk"
    size = max(1, len(plan.faults) // 2)
    while True:
        smaller = next((each for each in _parts_left(plan, size) if fails(each)), None)
        if smaller is not None:
            plan = smaller
            size = min(size, max(1, len(plan.faults)))
        elif size > 1:
            size //= 2
        else:
            return plan


def _parts_left(plan: ActorFaultPlan, size: int) -> Iterator[ActorFaultPlan]:
    for start in range(0, len(plan.faults), size):
        yield plan.without(slice(start, start + size))
