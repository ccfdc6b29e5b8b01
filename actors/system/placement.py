"""Where an actor's process may run. Stages of one machine take no notice of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.placement import Together


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceTogether:
    """Places that are reserved for a group of actors at once."""

    group: str
    together: Together
    places: tuple[dict[str, float], ...]
    """What is reserved for each member: Ray's resources, `CPU` and `GPU` among them."""
    index: int
    """Which of them this actor takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Which nodes will do."""

    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources to reserve."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the node must have; values may be selectors (`policies.placement.PlacementOptions.labels`)."""
    cpu_only: bool = False
    """Only nodes without GPUs."""
    spread: bool = False
    home: bool = False
    """The node that the driver runs on."""
    place: PlaceTogether | None = None
    """A reserved place; then labels are those of the whole group, and what the part itself reserves is in it."""
