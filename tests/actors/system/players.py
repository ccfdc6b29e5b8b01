"""Messages and actors for the tests of the actor system; importable by the processes that host them."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar, Literal

from actors.system.actor import Actor, ActorRef, BlobRef, CannotGoOn, handles
from actors.system.message import Done, Message, Request


class Said(Message, tag="test.said"):
    text: str
    incarnation: int = 0


class Say(Request[Said], tag="test.say"):
    text: str


class SayUrgently(Request[Said], tag="test.say_urgently"):
    lane: ClassVar[Literal["work", "control"]] = "control"
    text: str


class SayLater(Request[Said], tag="test.say_later"):
    text: str
    turns: int = 1
    """Turns of the loop to wait."""


class Hang(Request[Done], tag="test.hang"):
    """Never answered."""


class Break(Request[Done], tag="test.break"):
    text: str


class Refuse(Request[Done], tag="test.refuse"):
    """Answered by a kind of `CannotGoOn`."""

    text: str


class Full(CannotGoOn):
    """Known only to whoever raises it."""


class Unheard(Request[Done], tag="test.unheard"):
    """No actor handles it."""


class Told(Message, tag="test.told"):
    text: str


class Heard(Message, tag="test.heard"):
    texts: tuple[str, ...]


class WhatWasTold(Request[Heard], tag="test.what_was_told"):
    """Asks for the texts of `Told`, in the order of their arrival."""


class Facts(Message, tag="test.facts"):
    facts: dict[str, Any]


class AskFacts(Request[Facts], tag="test.ask_facts"):
    """Asks for what the actor sees of its process."""


class PassOn(Request[Said], tag="test.pass_on"):
    to: str
    text: str


class Block(Request[Done], tag="test.block"):
    """Blocks the actor's thread until the file exists."""

    until: str


class Store(Request[Said], tag="test.store"):
    """Put numbers into the object store; answers with the key."""

    count: int
    dtype: str = "float32"


class Sum(Request[Said], tag="test.sum"):
    key: str


class DropBlob(Request[Done], tag="test.drop"):
    key: str


class FailTask(Request[Done], tag="test.fail_task"):
    text: str


class Player(Actor):
    """Does whatever a test needs of an actor."""

    def __init__(self, greeting: str = "", leave: str = "") -> None:
        self.greeting, self.leave = greeting, leave
        self.told: list[str] = []

    async def stop(self) -> None:
        if self.leave:
            _leave(self.leave, self.port.name)

    @handles(Say)
    async def on_say(self, say: Say) -> Said:
        return Said(text=self.greeting + say.text, incarnation=self.port.incarnation)

    @handles(SayUrgently)
    async def on_say_urgently(self, say: SayUrgently) -> Said:
        return Said(text=say.text)

    @handles(SayLater)
    async def on_say_later(self, say: SayLater) -> Said:
        for _ in range(say.turns):
            await asyncio.sleep(0)
        return Said(text=say.text)

    @handles(Hang)
    async def on_hang(self, hang: Hang) -> None:
        await asyncio.Event().wait()

    @handles(Break)
    async def on_break(self, request: Break) -> None:
        raise ZeroDivisionError(request.text)

    @handles(Refuse)
    async def on_refuse(self, request: Refuse) -> None:
        raise Full(request.text)

    @handles(Told)
    async def on_told(self, told: Told) -> None:
        self.told.append(told.text)

    @handles(WhatWasTold)
    async def on_what_was_told(self, request: WhatWasTold) -> Heard:
        return Heard(texts=tuple(self.told))

    @handles(AskFacts)
    async def on_facts(self, request: AskFacts) -> Facts:
        return Facts(
            facts={
                "pid": os.getpid(),
                "parent": os.getppid(),
                "group": os.getpgid(0),
                "omp": os.environ.get("OMP_NUM_THREADS"),
                "colour": os.environ.get("COLOUR"),
                "seen_at_import": COLOUR_AT_IMPORT,
                "loop": type(asyncio.get_running_loop()).__module__,
                "luck": self.port.random.random(),
                "ids": [self.port.fresh_id(), self.port.fresh_id()],
                "torch": "torch" in sys.modules,
                "host_classes": sum(
                    isinstance(each, type) and each.__name__ == "HostProcess" for each in gc.get_objects()
                ),
            }
        )

    @handles(PassOn)
    async def on_pass_on(self, request: PassOn) -> Said:
        return await self.port.ask(ActorRef(request.to), Say(text=request.text))

    @handles(Block)
    async def on_block(self, block: Block) -> None:
        def wait() -> str:
            while not Path(block.until).exists():
                threading.Event().wait(0.01)
            return threading.current_thread().name

        name = await self.port.offload(lambda: 1.0, wait)
        assert name.startswith(self.port.name), name

    @handles(Store)
    async def on_store(self, store: Store) -> Said:
        import torch

        values = torch.arange(store.count).to(getattr(torch, store.dtype))
        ref = await self.port.blobs.put({"weights": [values], "note": "numbers"})
        return Said(text=ref.key)

    @handles(Sum)
    async def on_sum(self, request: Sum) -> Said:
        value = await self.port.blobs.get(BlobRef(request.key))
        assert value["note"] == "numbers"
        return Said(text=str(int(value["weights"][0].double().sum())))

    @handles(DropBlob)
    async def on_drop(self, request: DropBlob) -> None:
        await self.port.blobs.drop(BlobRef(request.key))

    @handles(FailTask)
    async def on_fail_task(self, request: FailTask) -> None:
        self.port.start_task(self._fail(request.text))

    async def _fail(self, text: str) -> None:
        await asyncio.sleep(0)
        raise RuntimeError(text)


COLOUR_AT_IMPORT = os.environ.get("COLOUR")


class BadlyMade(Actor):
    def __init__(self) -> None:
        raise ValueError("made of nothing")


class BadStarter(Actor):
    def __init__(self, marker: str = "") -> None:
        self.marker = marker

    async def start(self) -> None:
        """Fails at once, or as soon as the marker file exists."""
        if not self.marker or _exists(self.marker):
            raise ValueError("stage fright")


class DiesAtStart(Actor):
    async def start(self) -> None:
        os._exit(3)


class Greeter(Actor):
    """Talks to a peer of the same batch before either has started."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.answer = ""

    async def start(self) -> None:
        self.answer = (await self.port.ask(ActorRef(self.peer), Say(text="early"), deadline_s=60)).text

    @handles(Say)
    async def on_say(self, say: Say) -> Said:
        return Said(text=self.answer)


def _leave(path: str, text: str) -> None:
    Path(path).write_text(text)


def _exists(path: str) -> bool:
    return Path(path).exists()
