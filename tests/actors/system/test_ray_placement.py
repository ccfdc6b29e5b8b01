"""What a stage refuses to spawn, whatever Ray would make of it."""

from __future__ import annotations

import pytest

from actors.system import ray_placement
from actors.system.placement import Placement, PlaceTogether
from actors.system.ray_placement import RayPlacement, wishes_of
from actors.system.stage import Part
from policies.placement import Node
from tests.actors.system.players import Player

HOME = Node(id="h", address="10.0.0.1", resources={"CPU": 2.0}, home=True)
OTHER = Node(id="o", address="10.0.0.2", resources={"CPU": 2.0}, labels={"pool": "b"})


def part(name: str, cpus: float = 0.0, **placement) -> Part:
    return Part(name=name, actor=Player, cpus=cpus, placement=Placement(**placement))


def test_parts_count_together_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_placement, "ray_nodes", lambda: [HOME, OTHER])
    placement, there = RayPlacement(timeout_s=1.0), [part("a", 2), part("b", 1)]
    placement.check([part("c", 1)], beside=there)
    with pytest.raises(ValueError, match=r"finds no place: each needs . CPU"):
        placement.check([part("c", 2)], beside=there)


def test_while_actors_of_a_lost_node_wait_for_room_others_may_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_placement, "ray_nodes", lambda: [HOME])
    waiting = [part("bound", 1, labels={"pool": "b"})]
    RayPlacement(timeout_s=1.0).check([part("new", home=True)], beside=waiting)


def test_a_group_on_one_node_is_one_wish_and_a_group_apart_is_many() -> None:
    def member(index: int, together) -> Part:
        place = PlaceTogether(group="g", together=together, places=({"CPU": 1.0},) * 2, index=index)
        return part(f"m{index}", 1, place=place)

    (one,) = wishes_of([member(index, "strict_pack") for index in range(2)])
    assert one.resources["CPU"] == 2
    assert [wish.apart for wish in wishes_of([member(index, "strict_spread") for index in range(2)])] == ["g", "g"]
