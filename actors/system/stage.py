"""A stage hosts actors: it starts them, carries what they say, owns the clock, and cleans up.

`RayStage` (real processes) and `VirtualStage` (one process, virtual time) implement this protocol.
Actors can't tell which one they are on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.system.actor import Actor, ActorRef, Port, last_line
from actors.system.placement import Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A role in a run: which actor, under which name, with what."""

    name: str
    actor: type[Actor]
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the actor's class; picklable."""
    cpus: float = 0.0
    """CPU cores to reserve. Actors that compute should name them: the stage also sets their thread counts."""
    gpus: float = 0.0
    threads: int = 1
    """Compute threads (OMP, torch) of the actor's process."""
    restarts: int = 0
    """How often the stage recreates the actor after its process died, within any `restart_window_s`."""
    restart_window_s: float = math.inf
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the actor's process."""
    placement: Placement = field(default_factory=Placement)
    """Which nodes of a cluster will do."""


class ActorStartFailed(RuntimeError):
    """An actor's `__init__` or `start` raised: the text names the actor and holds the traceback. Or what actors run on
    could not be started."""


def check_open(opened: bool, closed: bool) -> None:
    """Raises `ValueError` for a stage that has not been opened yet, or is closed."""
    if closed:
        raise ValueError("the stage is closed; open another one")
    if not opened:
        raise ValueError("the stage is not open; use it within `async with`")


@dataclass(frozen=True, slots=True)
class Death:
    """An actor's process ended without being asked to."""

    name: str
    incarnation: int
    reason: str
    restarting: bool
    """Whether the stage will recreate the actor."""

    @property
    def in_a_line(self) -> str:
        """The reason without the traceback that it may end."""
        return last_line(self.reason)


class Stage(Protocol):
    """Hosts actors.

    Example:
        async with RayStage(seed=0) as stage:
            balancer = await stage.spawn(Part(name="balancer", actor=Balancer))
            await stage.port.ask(balancer, Ping(text="hello"), deadline_s=5)
    """

    @property
    def port(self) -> Port:
        """The port of whoever directs the run from outside (it can ask and tell, but has no handlers)."""
        ...

    async def spawn(self, *parts: Part) -> list[ActorRef]:
        """Start actors side by side and wait until all have started.

        Raises `ActorStartFailed`; then none of them is left running.
        """
        ...

    async def kill(self, ref: ActorRef) -> None:
        """End an actor at once, as a crash would; the stage restarts it if its part allows."""
        ...

    async def close(self) -> None:
        """Stop all actors, wait for their processes to end, and leave nothing behind."""
        ...
