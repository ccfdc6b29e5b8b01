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
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from actors.system.actor import ActorRef, BlobRef, DeadlineExceeded, seed_for
from actors.system.clock import Clock
from actors.system.message import Message, Request
from actors.system.virtual_loop import NS, VirtualLoop

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
        self._post, self._deadlines = stage.post, stage.deadlines
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
        answer: asyncio.Future[R] = asyncio.Future()  # Future[R](loop=...) would make two dictionaries
        name = to.name
        target = self._post.send(self._member, name, request, answer)
        deadlines = self._deadlines
        ask = None if deadline_s is None else deadlines.add(deadline_s, answer, self.name, name, request.tag)
        try:
            return await answer
        finally:
            if target is not None:
                target.asks.pop(answer, None)
            if ask is not None:
                ask.forget()

    def tell(self, to: ActorRef, message: Message) -> None:
        """See `Port.tell`."""
        self._post.send(self._member, to.name, message, None)

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


class _Ask:
    """An ask that is given up at a time, if its answer has not come by then."""

    __slots__ = ("answer", "source", "tag", "target", "until_ns")

    def __init__(self, until_ns: int, answer: asyncio.Future[Any], source: str, target: str, tag: str) -> None:
        self.until_ns, self.source, self.target, self.tag = until_ns, source, target, tag
        self.answer: asyncio.Future[Any] | None = answer

    def over(self) -> bool:
        return self.answer is None or self.answer.done()

    def forget(self) -> None:
        """Nobody waits any more: the answer is kept alive for no longer, however long the ask stands in line."""
        self.answer = None


class Deadlines:
    """When asks are given up. Those of one deadline end in the order in which they began, so each has a queue."""

    def __init__(self, loop: VirtualLoop, note: Callable[..., None]) -> None:
        self._loop, self._note = loop, note
        self._queues: dict[float, tuple[int, deque[_Ask]]] = {}
        """By deadline in seconds: that in nanoseconds, and who waits."""
        self._set: dict[float, None] = {}
        """Deadlines with a timer that is yet to ring."""

    def add(self, deadline_s: float, answer: asyncio.Future[Any], source: str, target: str, tag: str) -> _Ask:
        """Fail `answer` with `DeadlineExceeded` if it is not there in `deadline_s`."""
        if deadline_s not in self._queues:
            self._queues[deadline_s] = round(deadline_s * NS), deque()
        deadline_ns, queue = self._queues[deadline_s]
        while queue and queue[0].over():
            queue.popleft()
        ask = _Ask(self._loop.now_ns() + deadline_ns, answer, source, target, tag)
        queue.append(ask)
        # One timer for each deadline is enough: it rings for somebody who asked before. But where orders are explored,
        # each callback is a draw, and a seed's order stays what it was only if there are as many as ever.
        if len(queue) == 1 and (deadline_s not in self._set or self._loop.explores):
            self._set_timer(deadline_s, queue)
        return ask

    def _set_timer(self, deadline_s: float, queue: deque[_Ask]) -> None:
        self._set[deadline_s] = None
        self._loop.call_at_ns(queue[0].until_ns, self._ring, deadline_s, queue, context=Context())

    def _ring(self, deadline_s: float, queue: deque[_Ask]) -> None:
        self._set.pop(deadline_s, None)
        while queue and (queue[0].until_ns <= self._loop.now_ns() or queue[0].over()):
            ask = queue.popleft()
            if ask.answer is not None and not ask.answer.done():
                self._note("late", ask.target, ask.source, ask.tag)
                text = f"{ask.target} has not answered {ask.tag!r} within {deadline_s:g} s"
                ask.answer.set_exception(DeadlineExceeded(text))
        if queue:
            self._set_timer(deadline_s, queue)
