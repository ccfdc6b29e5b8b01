"""One incarnation of one actor on the virtual stage, and how long things take between actors."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from actors.system.actor import Actor
from actors.system.stage import Part
from actors.system.virtual_loop import OWNER
from policies.restarts import RestartBudget

if TYPE_CHECKING:
    from actors.system.virtual_port import VirtualPort


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """How long things take between actors, seconds. Defaults: measured on Ray, or its mailboxes' limits."""

    latency_s: float = 0.001
    """One way."""
    jitter_s: float = 0.0
    """At most so much more, drawn evenly."""
    death_seen_s: float = 0.012
    restart_s: float = 3.0
    resend_s: float = 0.05
    """Until a lost frame is sent again."""
    give_up_s: float = 60.0
    """Until whoever can't reach an actor is told that it is lost."""


class Member:
    """One incarnation of one actor."""

    __slots__ = (
        "actor",
        "asks",
        "budget",
        "context",
        "held",
        "incarnation",
        "name",
        "noticed",
        "part",
        "port",
        "since_s",
        "state",
    )

    def __init__(self, part: Part, incarnation: int, budget: RestartBudget) -> None:
        self.part, self.incarnation, self.budget = part, incarnation, budget
        self.since_s: float | None = None
        """When its start was through."""
        self.name = part.name
        self.state: Literal["starting", "running", "gone"] = "starting"
        self.noticed = False
        """Whether its death has been."""
        self.asks: dict[asyncio.Future[Any], str] = {}
        """Who waits for an answer of this incarnation -> tag of the request."""
        self.held: list[Callable[[], None]] = []
        """What arrived before it had started."""
        self.context = contextvars.Context()
        self.context.run(OWNER.set, self.owner)
        self.actor: Actor | None = None
        self.port: VirtualPort | None = None

    @property
    def owner(self) -> str:
        return f"{self.name}/{self.incarnation}"
