"""Which machines of a cluster actors may run on: a recipe's wishes, and whether a cluster can meet them.

Invariants:
- wishes are in Ray's own terms (CPUs, GPUs, custom resources, node labels): Ray, not this module, chooses the node;
- what is refused here could not be placed by anybody, or only by luck: each refusal names the wish and what there is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from policies.options import Options

NODE_ID = "ray.io/node-id"
"""The label that Ray gives each node."""
Together = Literal["pack", "strict_pack", "spread", "strict_spread"]
"""How Ray's placement group lays out its members: on few nodes, on one, on many, each on its own."""

_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_SELECTOR = re.compile(rf"!?(?:{_NAME}|in\({_NAME}(?:,{_NAME})*\))")


class PlacementOptions(Options):
    """Where the actors of one kind may run."""

    cpus: Annotated[float, Field(ge=0)] | None = None
    """CPUs to reserve for each; None: as many as it computes with."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Custom resources to reserve for each, as nodes were started with (`ray start --resources`)."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the node must have (`ray start --labels`): a value, `!value`, `in(a,b)` or `!in(a,b)`."""
    cpu_only: bool = False
    """Only nodes without GPUs."""
    spread: bool = False
    """One after the other over all nodes that will do, rather than filling one first."""

    @field_validator("labels")
    @classmethod
    def _selectors(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, selector in labels.items():
            if not _SELECTOR.fullmatch(selector):
                raise ValueError(
                    f"{key} = {selector!r} selects no label; give a value, '!value', 'in(a,b)' or '!in(a,b)', of "
                    "letters, digits, '-', '_' and '.'"
                )
        return labels

    @field_validator("resources")
    @classmethod
    def _custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name in ("CPU", "GPU", "memory", "object_store_memory"):
            if name in resources:
                raise ValueError(f"{name} is not a custom resource; use `cpus`, or `gpus` of the actor's own section")
        return resources


class EnvironmentPlacementOptions(PlacementOptions):
    """Where the environments may run."""

    spread: bool = True


class LearnerPlacementOptions(PlacementOptions):
    """Where the learners may run."""

    together: Together | None = None
    """A placement group of all learners: their places are reserved at once, or not at all."""


class ClusterOptions(Options):
    """Which Ray cluster a run joins, and where its actors go."""

    address: str = ""
    """Of the Ray cluster to join: `HOST:PORT`, or `auto` for the one that this machine (or RAY_ADDRESS) belongs to.
    Empty: a local Ray of the run's own."""
    allow_open: bool = False
    """Whether to join a cluster that takes anyone who can reach it, because it was started without a token."""
    shared_files: bool = False
    """Whether all nodes see this machine's files under the same paths (a network file system). Then nothing is
    carried to them, and learners may run elsewhere than beside the run's folder."""
    environments: EnvironmentPlacementOptions = EnvironmentPlacementOptions()
    generators: PlacementOptions = PlacementOptions()
    rollouts: PlacementOptions | None = None
    """None: on the driver's node, as balancer, archive and director are."""
    learners: LearnerPlacementOptions | None = None
    """None: on the driver's node."""

    @model_validator(mode="after")
    def _learners_reach_the_folder(self) -> ClusterOptions:
        if self.learners is not None and not self.shared_files and self.address:
            raise ValueError(
                "learners write checkpoints into the run's folder, so they run on the driver's node unless all nodes "
                "see the same files; set shared_files = true if they do, else leave out [cluster.learners]"
            )
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What one machine of a cluster has."""

    id: str
    address: str
    resources: dict[str, float] = field(default_factory=dict)
    """In all, `CPU` and `GPU` among them."""
    labels: dict[str, str] = field(default_factory=dict)
    home: bool = False
    """Whether the driver runs on it."""

    def described(self) -> str:
        """`10.0.0.3 (home): 8 CPU, 1 GPU, pool=a`."""
        shown = [
            f"{amount:g} {name}"
            for name, amount in sorted(self.resources.items())
            if not name.startswith(("node:", "memory", "object_store_memory"))
        ]
        labels = [f"{key}={value}" for key, value in sorted(self.labels.items()) if key != NODE_ID]
        return f"{self.address}{' (home)' if self.home else ''}: {', '.join([*shown, *labels]) or 'nothing'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What one actor needs of a node."""

    actor: str
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    cpu_only: bool = False
    home: bool = False
    apart: str = ""
    """No two wishes of this name may be met by one node."""

    def joined_by(self, other: Wish) -> Wish:
        """What both need, if one node has to hold them."""
        names = [*self.resources, *(name for name in other.resources if name not in self.resources)]
        total = {name: self.resources.get(name, 0.0) + other.resources.get(name, 0.0) for name in names}
        return replace(self, actor=f"{self.actor}+{other.actor}", resources=total)

    def allows(self, node: Node) -> bool:
        """Whether the node is of the kind that is wished for, whatever room it has."""
        if (self.home and not node.home) or (self.cpu_only and node.resources.get("GPU", 0.0) > 0):
            return False
        return all(selects(selector, node.labels.get(key)) for key, selector in self.labels.items())

    def described(self) -> str:
        """`4 CPU, pool=a, no GPUs on the node`."""
        parts = [f"{amount:g} {name}" for name, amount in self.resources.items() if amount]
        parts += [f"{key}={selector}" for key, selector in self.labels.items()]
        parts += ["no GPUs on the node"] if self.cpu_only else []
        parts += ["the driver's node"] if self.home else []
        parts += ["a node of its own"] if self.apart else []
        return ", ".join(parts) or "any node"


def selects(selector: str, label: str | None) -> bool:
    """Whether a node with this label (None: without it) is selected. As in Ray, negations hold for nodes without it."""
    wanted = not selector.startswith("!")
    values = selector.removeprefix("!")
    among = values[3:-1].split(",") if values.startswith("in(") else [values]
    return (label in among) == wanted


def misfits(wishes: Sequence[Wish], nodes: Sequence[Node]) -> list[str]:
    """What can't be placed, a sentence for each kind of wish; empty if everything finds a place.

    Actors are placed as first fit does, those that few nodes allow and that need most first. Ray might find a way for
    all where this finds none, but not where an actor alone is too large, or all of them together are.
    """
    room = {node.id: dict(node.resources) for node in nodes}
    taken: set[tuple[str, str]] = set()
    left_over: dict[str, list[Wish]] = {}
    for wish in sorted(wishes, key=lambda wish: _difficulty(wish, nodes)):
        for node in nodes:
            free = not wish.apart or (wish.apart, node.id) not in taken
            if free and wish.allows(node) and _take(room[node.id], wish.resources):
                taken.add((wish.apart, node.id))
                break
        else:
            left_over.setdefault(wish.described(), []).append(wish)
    return [_refusal(described, missed, wishes, nodes) for described, missed in left_over.items()]


def _difficulty(wish: Wish, nodes: Sequence[Node]) -> tuple[int, float]:
    return sum(wish.allows(node) for node in nodes), -sum(wish.resources.values())


def _take(room: dict[str, float], wanted: dict[str, float]) -> bool:
    if any(amount > room.get(name, 0.0) + 1e-9 for name, amount in wanted.items()):
        return False
    for name, amount in wanted.items():
        if amount:
            room[name] -= amount
    return True


def _refusal(described: str, missed: Sequence[Wish], wishes: Sequence[Wish], nodes: Sequence[Node]) -> str:
    alike = sum(wish.described() == described for wish in wishes)
    who = f"{missed[0].actor} finds no place" if alike == 1 else f"{len(missed)} of {alike} actors find no place"
    who += (
        "" if alike == 1 else f" ({', '.join(wish.actor for wish in missed[:3])}{', ...' if len(missed) > 3 else ''})"
    )
    allowed = [node for node in nodes if missed[0].allows(node)]
    if not allowed:
        return f"{who}: each needs {described}, and no node is such; nodes: {_listed(nodes)}"
    return f"{who}: each needs {described}; nodes that would do: {_listed(allowed)}"


def _listed(nodes: Sequence[Node]) -> str:
    return "; ".join(node.described() for node in nodes) or "none"
