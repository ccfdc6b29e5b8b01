"""Where Ray puts actors: wishes in Ray's terms, reserved places, and what the cluster has.

Invariants:
- a wish is turned into Ray's terms each time an actor is made, with the nodes that there are then: who is restarted
  may use nodes that have joined since;
- a group's places are reserved at once, before its first member is made, and given back when the stage closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray import exceptions as ray_errors
from ray._private import state as ray_state
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.system.local_ray import LocalRay
from actors.system.placement import PlaceTogether
from actors.system.ray_access import join_cluster
from actors.system.stage import ActorStartFailed, Part
from policies.placement import NODE_ID, Node, Wish, misfits


def ray_nodes() -> list[Node]:
    """The nodes that live now, of the cluster that this process is connected to."""
    home = ray.get_runtime_context().get_node_id()
    return [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            resources=dict(node["Resources"]),
            labels=dict(node["Labels"]),
            home=node["NodeID"] == home,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def node_of(actor: Any) -> str:
    """Id of the node that a Ray actor runs on, or ran on last."""
    return ray_state.actors(actor._actor_id.hex())["Address"]["NodeID"]


def cluster_nodes(address: str, allow_open: bool) -> list[Node]:
    """The nodes of a cluster that this process has not joined yet. Raises `actors.system.ray_access.ClusterRefused`."""
    if LocalRay.open is not None:  # the one that this process shares whatever the address
        return ray_nodes()
    join_cluster(address, allow_open)
    try:
        return ray_nodes()
    finally:
        ray.shutdown()


def wishes_of(parts: Iterable[Part]) -> list[Wish]:
    """What parts need of nodes: one wish each, and one for all that must be on one node."""
    wishes: dict[str, Wish] = {}
    for part in parts:
        placement, place = part.placement, part.placement.place
        wish = Wish(
            actor=part.name,
            resources={"CPU": part.cpus, "GPU": part.gpus} | placement.resources,
            labels=placement.labels,
            cpu_only=placement.cpu_only,
            home=placement.home,
            apart=place.group if place is not None and place.together == "strict_spread" else "",
        )
        if place is not None and place.together == "strict_pack":
            before = wishes.get(place.group)
            wishes[place.group] = wish if before is None else before.joined_by(wish)
        else:
            wishes[part.name] = wish
    return list(wishes.values())


class RayPlacement:
    """Places the actors of one stage."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a group waits for its places."""
        self._timeout_s = timeout_s
        self._groups: dict[str, PlacementGroup] = {}

    def check(self, parts: Iterable[Part], beside: Iterable[Part]) -> None:
        """Raises `ValueError` if the cluster, without other jobs, could not hold these parts beside those it has."""
        parts, beside, nodes = list(parts), list(beside), ray_nodes()
        missing = misfits(wishes_of([*beside, *parts]), nodes)
        if missing and not misfits(wishes_of(beside), nodes):  # else a node was lost, and its actors wait for room
            raise ValueError("the actors do not fit the cluster:\n  " + "\n  ".join(missing))

    def options(self, part: Part) -> dict[str, Any]:
        """How Ray is asked for the process of a part."""
        placement = part.placement
        asked: dict[str, Any] = {
            "num_cpus": part.cpus,
            "num_gpus": part.gpus,
            "resources": placement.resources,
        }
        if placement.place is not None:
            asked["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._groups[placement.place.group],
                placement_group_bundle_index=placement.place.index,
            )
            return asked
        if placement.spread:
            asked["scheduling_strategy"] = "SPREAD"
        if labels := _labels(part):
            asked["label_selector"] = labels
        return asked

    async def reserve(self, parts: Iterable[Part]) -> None:
        """Reserve the places of the groups that these parts belong to. Raises `ActorStartFailed` if there are none."""
        for part in parts:
            place = part.placement.place
            if place is not None and place.group not in self._groups:
                await self._reserve(place, _labels(part))

    async def _reserve(self, place: PlaceTogether, labels: dict[str, str]) -> None:
        group = self._groups[place.group] = placement_group(
            [dict(each) for each in place.places],
            strategy=place.together.upper(),
            bundle_label_selector=[labels] * len(place.places),
        )
        if not await asyncio.to_thread(group.wait, self._timeout_s):
            await self.release(place.group)
            raise ActorStartFailed(
                f"{place.group}: {len(place.places)} places ({place.together}) were not free within "
                f"{self._timeout_s:g} s: each needs {place.places[0]}"
            )

    async def release(self, *names: str) -> None:
        """Give reserved places back; all, unless some are named."""
        for name in names or tuple(self._groups):
            group = self._groups.pop(name)
            with suppress(ray_errors.RayError):  # Ray itself may be gone, and the places with it
                await asyncio.to_thread(remove_placement_group, group)


def _labels(part: Part) -> dict[str, str]:
    placement, labels = part.placement, dict(part.placement.labels)
    if placement.home:
        labels[NODE_ID] = ray.get_runtime_context().get_node_id()
    elif placement.cpu_only and (with_gpus := [node.id for node in ray_nodes() if node.resources.get("GPU")]):
        labels[NODE_ID] = f"!in({','.join(with_gpus)})"
    return labels
