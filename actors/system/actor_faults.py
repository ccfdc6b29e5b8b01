"""ActorFault plans: what goes wrong in a run, when, and for whom. Data, drawn from a seed, and printed in full.

Invariants:
- a plan is all that a faulty run needs besides its recipe: the same plan gives the same run;
- any part of a plan is a plan: so a failing one can be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from actors.system.actor import seed_for

ActorFaultKind = Literal[
    "kill",  # the actor's process ends; the stage restarts it if its part allows
    "freeze",  # the actor hears and says nothing for `seconds`
    "delay",  # messages to the actor arrive `seconds` later; those behind them in the lane wait
    "drop",  # frames to the actor are lost, and sent again by the mailbox
    "double",  # the actor gets messages twice, as after a resend
    "lose",  # messages to the actor never arrive: asks fail with `ActorLost` when the mailbox gives up
]


ProcessRole = Literal["actor", "jail", "init", "zygote", "program"]


class ActorFault(BaseModel):
    """One thing that goes wrong, or the same one again and again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ActorFaultKind
    at: Annotated[float, Field(ge=0)]
    """Seconds of the run's clock."""
    actor: str
    """Name of the actor that is hit; `*` and `?` match any, as in file names, and one of those that match is drawn."""
    every: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which it happens again, until the run's end."""
    process: ProcessRole = "actor"
    """Which process: the actor's own, or one of the sandbox below it (`env.host_state`); those are real only."""
    messages: Annotated[int, Field(ge=1)] = 1
    """How many messages are hit, from `at` on (`delay`, `drop`, `double`, `lose`)."""
    seconds: Annotated[float, Field(ge=0)] = 1.0
    """How long (`freeze`, `delay`)."""

    def candidates(self, actors: Sequence[str]) -> list[str]:
        """Those of `actors` that it may hit. Raises `ValueError` if there is none."""
        fitting = [name for name in actors if fnmatchcase(name, self.actor)]
        if not fitting:
            raise ValueError(f"a fault is meant for {self.actor!r}, but the actors are {', '.join(actors)}")
        return fitting

    def __str__(self) -> str:
        how = f" for {self.seconds:g} s" if self.kind in ("freeze", "delay") else ""
        many = f" {self.messages} messages" if self.kind in ("delay", "drop", "double", "lose") else ""
        again = "" if self.every is None else f", and every {self.every:g} s"
        whom = self.actor if self.process == "actor" else f"{self.process} of {self.actor}"
        return f"at {self.at:.3f} s{again}: {self.kind}{many} {whom}{how}"


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
        kinds: Sequence[ActorFaultKind] = ("kill", "freeze", "delay", "drop", "double", "lose"),
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
    actor = rng.choice(killable if kind == "kill" and killable else actors)
    if kind == "kill" and not killable:
        kind = "delay"
    return ActorFault(
        kind=kind,
        at=round(rng.uniform(0, until), 3),
        actor=actor,
        messages=rng.randint(1, 5),
        seconds=round(rng.choice([0.01, 0.3, 3.0, 20.0]) * rng.uniform(0.5, 1.5), 3),
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
