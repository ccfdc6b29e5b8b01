"""What rollout actors are asked, and what they answer."""

from __future__ import annotations

from actors.system.message import Message, Request
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
