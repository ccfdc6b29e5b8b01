"""A driver for the tests of what is left behind: `python -m tests.actors.system.run_driver ENDING`.

Opens a stage, says on standard output which processes and which folder it has, then ends in the way it is told.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import psutil

from actors.system.actor import ActorRef
from actors.system.local_ray import LocalRay
from actors.system.ray_stage import RayStage
from actors.system.stage import Part
from tests.actors.system.players import BadlyMade, Hang, Player


async def direct(ending: str) -> None:
    async with RayStage(seed=0, cpus=2, grace_s=2) as stage:
        await stage.spawn(Part(name="anna", actor=Player))
        assert LocalRay.open is not None
        processes = [child.pid for child in psutil.Process().children(recursive=True)]
        print(json.dumps({"folder": str(LocalRay.open.folder), "processes": processes}), flush=True)
        if ending == "raise":
            raise RuntimeError("the run failed")
        if ending == "fail to start":
            await stage.spawn(Part(name="bad", actor=BadlyMade))
        if ending == "wait":
            await stage.port.ask(ActorRef("anna"), Hang())
    if ending == "twice":
        async with RayStage(seed=0, cpus=2) as stage:
            await stage.spawn(Part(name="anna", actor=Player))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit it as ignored
    asyncio.run(direct(sys.argv[1]))
