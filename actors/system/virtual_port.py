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
from actors.system.clock import Clock, ThreadWork
from actors.system.message import Message, Request
from actors.system.patience import NEVER_SEEN, Looks, gave_up
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
        self._jobs = 0
        self._job_seconds = 0
        self._job_began_ns: int | None = None
        self._looks = Looks(self.ask, self._start_look)

    async def ask[R: Message](
        self, to: ActorRef, request: Request[R], deadline_s: float | None = None, *, unless_at_work: bool = False
    ) -> R:
        """See `Port.ask`."""
        answer: asyncio.Future[R] = asyncio.Future()  # Future[R](loop=...) would make two dictionaries
        name = to.name
        target = self._post.send(self._member, name, request, answer)
        deadlines = self._deadlines
        ask = None
        if deadline_s is not None:
            looks = self._looks if unless_at_work else None
            ask = deadlines.add(deadline_s, answer, self.name, name, request.tag, looks)
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
            began = self._job_began_ns = self._loop.now_ns()
            try:
                await asyncio.sleep(cost())
                return work()
            finally:
                self._job_began_ns = None
                self._jobs += 1
                self._job_seconds += (self._loop.now_ns() - began) // NS

    def thread_work(self) -> ThreadWork:
        """See `Port.thread_work`: a job works all the time that it is said to take."""
        began = self._job_began_ns
        now = 0 if began is None else (self._loop.now_ns() - began) // NS
        return ThreadWork(self._jobs, self._job_seconds + now)

    def _start_look(self, look: Coroutine[Any, Any, None]) -> None:
        # Not as `start_task`: what notices a deadline runs on nobody's behalf.
        self._loop.create_task(look, context=self._member.context.copy())

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
    """An ask that is given up at a time, if its answer has not come by then, and `looks` does not say otherwise."""

    __slots__ = ("answer", "deadline_s", "deadlines", "looks", "seen", "source", "tag", "target", "until_ns")

    def __init__(
        self,
        deadlines: Deadlines,
        deadline_s: float,
        answer: asyncio.Future[Any],
        source: str,
        target: str,
        tag: str,
        looks: Looks | None,
    ) -> None:
        self.deadlines, self.deadline_s, self.looks = deadlines, deadline_s, looks
        self.source, self.target, self.tag = source, target, tag
        self.answer: asyncio.Future[Any] | None = answer
        self.until_ns = 0
        self.seen: object = NEVER_SEEN

    def over(self) -> bool:
        return self.answer is None or self.answer.done()

    def forget(self) -> None:
        """Nobody waits any more: the answer is kept alive for no longer, however long the ask stands in line."""
        self.answer = None

    def late(self) -> None:
        """Its time has come."""
        if self.looks is None:
            self.give_up()
        else:
            self.looks.late(self.target, self)

    def give_up(self) -> None:
        assert self.answer is not None, "somebody waits"
        self.deadlines.note("late", self.target, self.source, self.tag)
        text = gave_up(self.target, self.tag, self.deadline_s, self.seen)
        self.answer.set_exception(DeadlineExceeded(text))

    def wait_on(self) -> None:
        self.deadlines.queue(self)


class Deadlines:
    """When asks are given up. Those of one deadline end in the order in which they began, so each has a queue."""

    def __init__(self, loop: VirtualLoop, note: Callable[..., None]) -> None:
        self._loop, self.note = loop, note
        self._queues: dict[float, tuple[int, deque[_Ask]]] = {}
        """By deadline in seconds: that in nanoseconds, and who waits."""
        self._set: dict[float, None] = {}
        """Deadlines with a timer that is yet to ring."""

    def add(
        self,
        deadline_s: float,
        answer: asyncio.Future[Any],
        source: str,
        target: str,
        tag: str,
        looks: Looks | None = None,
    ) -> _Ask:
        """Fail `answer` with `DeadlineExceeded` if it is not there in `deadline_s`, and `looks`, if given, agrees."""
        ask = _Ask(self, deadline_s, answer, source, target, tag, looks)
        self.queue(ask)
        return ask

    def queue(self, ask: _Ask) -> None:
        """Its time begins now."""
        deadline_s = ask.deadline_s
        if deadline_s not in self._queues:
            self._queues[deadline_s] = round(deadline_s * NS), deque()
        deadline_ns, queue = self._queues[deadline_s]
        while queue and queue[0].over():
            queue.popleft()
        ask.until_ns = self._loop.now_ns() + deadline_ns
        queue.append(ask)
        # One timer for each deadline is enough: it rings for somebody who asked before. But where orders are explored,
        # each callback is a draw, and a seed's order stays what it was only if there are as many as ever.
        if len(queue) == 1 and (deadline_s not in self._set or self._loop.explores):
            self._set_timer(deadline_s, queue)

    def _set_timer(self, deadline_s: float, queue: deque[_Ask]) -> None:
        self._set[deadline_s] = None
        self._loop.call_at_ns(queue[0].until_ns, self._ring, deadline_s, queue, context=Context())

    def _ring(self, deadline_s: float, queue: deque[_Ask]) -> None:
        self._set.pop(deadline_s, None)
        while queue and (queue[0].until_ns <= self._loop.now_ns() or queue[0].over()):
            ask = queue.popleft()
            if not ask.over():
                ask.late()
        if queue:
            self._set_timer(deadline_s, queue)
