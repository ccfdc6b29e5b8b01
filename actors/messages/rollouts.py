"""What rollout actors are asked, and what they answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request
from policies.balancing import HeldLease
from policies.dialogue import DialogueLimits
from policies.trajectory import Problem, Trajectory
from policies.waves import Seat


class RolloutFinished(Message, tag="rollout.finished"):
    trajectory: Trajectory


class RunRollout(Request[RolloutFinished], tag="rollout.run"):
    """Play one dialogue to its end and store it; asking again while it is played gets the same answer."""

    id: str
    group: str
    sample: int
    stage: str
    step: int
    problem: Problem
    limits: DialogueLimits
    temperature: float
    seat: Seat | None = None
    """In a deterministic run: where it is played, and with whom in step."""


class RolloutsStatus(Message, tag="rollout.status"):
    playing: int
    leases: int
    """That its rollouts hold, or are giving back."""
    turns_again: int
    """Turns that were sampled on another generator, because one was lost."""
    calls_elsewhere: int
    """Calls that were tried on another environment, because one had failed them."""


class DescribeRollouts(Request[RolloutsStatus], tag="rollout.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"


class LeasesHeld(Message, tag="rollout.leases_held"):
    leases: tuple[HeldLease, ...]


class DescribeLeases(Request[LeasesHeld], tag="rollout.describe_leases"):
    """Asked by a balancer that was started again: its books are made of what rollouts hold."""

    lane: ClassVar[Literal["work", "control"]] = "control"


class AbandonRollouts(Request[Done], tag="rollout.abandon"):
    """End all that is played: the weights that it was sampled with are lost. Whoever asked for it does not any more."""

    lane: ClassVar[Literal["work", "control"]] = "control"
