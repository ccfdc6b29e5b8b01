"""What an actor on the virtual stage can reach of the world.

Invariants:
- `offload` runs the work inline, after the time that it is said to take; one after another for each actor, as the
  one thread that it has on a real stage;
- a blob is handed over by reference: whoever reads it must not write to it (tensors in an object store are the same).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from actors.system.actor import ActorRef, BlobRef, DeadlineExceeded, seed_for
from actors.system.clock import Clock
from actors.system.message import Message, Request

if TYPE_CHECKING:
    from actors.system.virtual_stage import Member, VirtualStage


class VirtualBlobs:
    """`Blobs` of one actor; `kept` is the stage's."""

    def __init__(self, kept: dict[str, Any], owner: str) -> None:
        self._kept, self._owner = kept, owner
        self._serial = 0

    async def put(self, value: Any) -> BlobRef:
        self._serial += 1
        key = f"{self._owner}/{self._serial}"
        self._kept[key] = value
        return BlobRef(key)

    async def get(self, ref: BlobRef) -> Any:
        if ref.key not in self._kept:
            raise KeyError(f"blob {ref.key} was dropped, or its owner is gone")
        return self._kept[ref.key]

    async def drop(self, ref: BlobRef) -> None:
        self._kept.pop(ref.key, None)


class VirtualPort:
    """The `Port` of the virtual stage."""

    def __init__(self, stage: VirtualStage, member: Member, *, seed: int, blobs: VirtualBlobs) -> None:
        self.name = member.name
        self.incarnation = member.incarnation
        self.clock: Clock = stage.loop
        self.random = random.Random(seed_for(seed, self.name))
        self.blobs = blobs
        self._stage, self._member, self._loop = stage, member, stage.loop
        self._serial = itertools.count(1)
        self._thread = asyncio.Lock()

    async def ask[R: Message](self, to: ActorRef, request: Request[R], deadline_s: float | None = None) -> R:
        """See `Port.ask`."""
        answer: asyncio.Future[R] = self._loop.create_future()
        target = self._stage.send(self._member, to.name, request, answer)
        timer = None
        if deadline_s is not None:
            timer = self._loop.call_later(deadline_s, self._expire, answer, to.name, request.tag, deadline_s)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            if target is not None:
                target.asks.pop(answer, None)

    def tell(self, to: ActorRef, message: Message) -> None:
        """See `Port.tell`."""
        self._stage.send(self._member, to.name, message, None)

    async def offload[T](self, cost: Callable[[], float], work: Callable[[], T]) -> T:
        """See `Port.offload`."""
        async with self._thread:
            await asyncio.sleep(cost())
            return work()

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """See `Port.start_task`."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def fresh_id(self) -> str:
        """See `Port.fresh_id`."""
        return f"{self.name}-{self.incarnation}-{next(self._serial)}"

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            text = "".join(traceback.format_exception(error))
            self._stage.crash(self._member, f"a task of it failed\n{text}")

    def _expire(self, answer: asyncio.Future[Any], name: str, tag: str, deadline_s: float) -> None:
        if not answer.done():
            self._stage.note("late", name, self.name, tag)
            answer.set_exception(DeadlineExceeded(f"{name} has not answered {tag!r} within {deadline_s:g} s"))
