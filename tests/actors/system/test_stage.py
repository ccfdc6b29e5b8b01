"""A stage that is not open refuses, whichever it is. (None of these starts a Ray.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.system.actor import ActorLost
from actors.system.ray_stage import RayStage
from actors.system.stage import Part
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Player, Say
from tests.actors.system.virtual_players import REF, A

type Runs = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize(("stage", "run"), [(RayStage, asyncio.run), (VirtualStage, run_virtual)])
def test_nothing_is_spawned_on_a_stage_that_was_not_opened_or_is_closed(
    stage: type[RayStage] | type[VirtualStage], run: Runs
) -> None:
    async def scene() -> None:
        unopened = stage(seed=0)
        with pytest.raises(ValueError, match=r"not open; use it within `async with`"):
            await unopened.spawn(Part(name="anna", actor=Player))
        await unopened.close()
        with pytest.raises(ValueError, match="closed; open another one"):
            await unopened.spawn(Part(name="anna", actor=Player))

    ran = ray.is_initialized()
    run(scene())
    assert ray.is_initialized() == ran, "whatever asks Ray for something starts one"


def test_nothing_else_of_ray_is_asked_for_on_a_stage_that_is_not_open(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = RayStage(seed=0)
        with pytest.raises(ValueError, match="not open"):
            await stage.carry(tmp_path)
        with pytest.raises(ValueError, match="not open"):
            _ = stage.own_node
        await stage.close()
        with pytest.raises(ValueError, match="opened once"):
            await stage.__aenter__()

    asyncio.run(scene())


def test_a_virtual_stage_is_refused_on_an_ordinary_loop() -> None:
    with pytest.raises(ValueError, match=r"inside run_virtual\(\)"):
        asyncio.run(VirtualStage(seed=0).__aenter__())


def test_who_asks_on_a_closed_virtual_stage_is_told_and_does_not_wait() -> None:
    async def scene() -> None:
        async with VirtualStage(seed=0) as stage:
            await stage.spawn(A)
        with pytest.raises(ActorLost, match="it is gone"):
            await stage.port.ask(REF, Say(text=""))

    run_virtual(scene())
