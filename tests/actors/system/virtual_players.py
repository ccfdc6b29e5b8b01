"""An actor that says, hears and breaks, and a stage for it on the virtual clock."""

import asyncio
from typing import Any

from actors.system.actor import Actor, ActorRef, handles
from actors.system.stage import Part
from actors.system.virtual_fixtures import play_twice
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Break, Full, Hang, Heard, Refuse, Said, Say, SayLater, Told, WhatWasTold


class Player(Actor):
    """Says, hears and breaks."""

    def __init__(self, start_s: float = 0.0, fail: str = "") -> None:
        self.start_s, self.fail = start_s, fail
        self.heard: list[str] = []
        self.stopped = 0

    async def start(self) -> None:
        await self.port.clock.sleep(self.start_s)
        if self.fail:
            raise ValueError(self.fail)

    async def stop(self) -> None:
        self.stopped += 1

    @handles(Say)
    async def on_say(self, message: Say) -> Said:
        self.heard.append(message.text)
        return Said(text=message.text, incarnation=self.port.incarnation)

    @handles(SayLater)
    async def on_say_later(self, message: SayLater) -> Said:
        await self.port.clock.sleep(message.turns)
        return Said(text=message.text, incarnation=self.port.incarnation)

    @handles(Hang)
    async def on_hang(self, _: Hang) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.port.tell(ActorRef("witness"), Told(text=f"{self.port.name} was cancelled"))

    @handles(Refuse)
    async def on_refuse(self, message: Refuse) -> None:
        raise Full(message.text)

    @handles(Break)
    async def on_break(self, message: Break) -> None:
        raise ValueError(message.text)

    @handles(Told)
    async def on_told(self, message: Told) -> None:
        self.heard.append(message.text)

    @handles(WhatWasTold)
    async def on_what(self, _: WhatWasTold) -> Heard:
        return Heard(texts=tuple(self.heard))


def play(scene, *parts: Part, explore: int | None = None, **options: Any) -> Any:
    """Run `scene(stage)` on a stage with these parts, twice; once if the test looks at the trace itself."""
    if "trace" not in options:
        return play_twice(scene, *parts, explore=explore, **options)

    async def main() -> Any:
        async with VirtualStage(seed=0, **options) as stage:
            await stage.spawn(*parts)
            return await scene(stage)

    return run_virtual(main(), explore=explore)


A, B, WITNESS = (Part(name=name, actor=Player, restarts=1) for name in ("a", "b", "witness"))
REF = ActorRef("a")
