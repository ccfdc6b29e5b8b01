"""What the balancer is asked, and what it answers."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request
from policies.balancing import Capacity, Lease, Load, Wish
from policies.trajectory import WeightsVersion


class LeaseGranted(Message, tag="balancer.granted"):
    lease: Lease | None
    """None if the wish was refused."""
    queued: bool = False
    """Whether the rollout had to wait."""
    refusal: str = ""


class AcquireLease(Request[LeaseGranted], tag="balancer.acquire"):
    wish: Wish


class ReleaseOwner(Request[Done], tag="balancer.release_owner"):
    """An incarnation of a rollout actor is gone: end all of its leases and wishes."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    owner: str
    """`NAME-INCARNATION`, as names of leases have it."""


class ReleaseLease(Request[Done], tag="balancer.release"):
    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    tokens: int | None = None
    """The length that the rollout came to; None if it did not come to its end."""


class TurnEnded(Message, tag="balancer.turn_ended"):
    """How long a rollout is after a model turn; said if its lease has `wants_progress`."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    tokens: int


class BeginTurn(Request[Done], tag="balancer.begin_turn"):
    """Answered when the turn may begin; asked before each turn after the first if the lease has a `turn_barrier`."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    turn: int


class JoinGenerator(Request[Done], tag="balancer.join"):
    """A generator is ready (or ready again, after a restart)."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    capacity: Capacity


class LeaveGenerator(Request[Done], tag="balancer.leave"):
    """A generator died."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    generator: str
    incarnation: int | None = None
    """The one that died: a later one stays. None: whichever there is."""


class CloseGate(Request[Done], tag="balancer.close_gate"):
    """Grant nothing more until `OpenGate`; answered when no lease is out (drained)."""

    lane: ClassVar[Literal["work", "control"]] = "control"


class OpenGate(Request[Done], tag="balancer.open_gate"):
    """All generators have these weights: grant leases (again)."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    version: WeightsVersion


class BalancerStatus(Message, tag="balancer.status"):
    gate_open: bool
    loads: tuple[Load, ...]
    waiting: int
    granted_total: int
    queued_total: int
    """Of the leases granted, those that had to wait."""
    peak_leases: int
    """The most leases that were out at one time."""


class DescribeBalancer(Request[BalancerStatus], tag="balancer.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"
