"""Faults of messages on a real stage; those of processes: tests/system/test_deaths_on_ray.py."""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from actors.system.actor import ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.links import PeerDied
from actors.system.ray_stage import RayStage
from orchestration.strikes import Striker


class Frames:
    """What a striker asks of a stage, as far as messages go: `told` gets frames, `quiet` none, `dying` dies once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def runs(self, ref: ActorRef) -> bool:
        return True

    def pid(self, ref: ActorRef) -> int:
        return os.getpid()

    def incarnation(self, ref: ActorRef) -> int:
        return 0

    async def disturb(self, ref: ActorRef, kind: Any, frames: int, seconds: float) -> None:
        self.asked.append((ref.name, kind, frames))
        if ref.name == "quiet":
            await asyncio.Event().wait()
        if ref.name == "dying":
            raise PeerDied("of another fault")


async def struck(*faults: ActorFault) -> tuple[Frames, Striker]:
    """Carry a plan out until nothing of it happens any more."""
    stage, names = Frames(), ["told", "quiet", "dying"]
    striker = Striker(cast(RayStage, stage), ActorFaultPlan(faults=faults), names, 0, counters=dict)
    striking = asyncio.create_task(striker.run())
    await asyncio.sleep(0.3)
    striking.cancel()
    await asyncio.gather(striking, return_exceptions=True)
    await striker.settle(0.0)
    return stage, striker


async def test_messages_that_were_hit_are_proof_and_those_that_died_with_their_actor_are_not() -> None:
    faults = (
        ActorFault(kind="drop", at=0, actor="told", messages=3),
        ActorFault(kind="double", at=0, actor="dying", messages=2),
    )
    stage, striker = await struck(*faults)
    assert stage.asked == [("told", "drop", 3), ("dying", "double", 2)]
    assert {each.actor: (each.confirmed, each.outcome) for each in striker.strikes} == {
        "told": (True, "recovered"),
        "dying": (False, "recovered"),
    }
    assert not striker.never


async def test_a_fault_whose_messages_do_not_come_has_not_happened_and_is_not_repeated_meanwhile() -> None:
    fault = ActorFault(kind="delay", at=0, every=0.02, actor="quiet")
    stage, striker = await struck(fault)
    assert stage.asked == [("quiet", "delay", 1)]
    assert striker.strikes == [] and list(striker.never) == [str(fault)]
