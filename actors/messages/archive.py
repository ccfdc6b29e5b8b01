"""What the archive is asked, and what it answers."""

from __future__ import annotations

from actors.system.message import Done, Message, Request
from policies.trajectory import Trajectory


class StoreTrajectory(Request[Done], tag="archive.store"):
    """Append a trajectory; answered once the operating system has it. Repeats are dropped."""

    trajectory: Trajectory


class ArchiveStatus(Message, tag="archive.status"):
    trajectories: int
    bytes_written: int


class DescribeArchive(Request[ArchiveStatus], tag="archive.describe"):
    """Bring the index up to date, and say what this writer stored."""
