"""Hosts actors in the test's own process and loop: real handlers, no transport.

Messages go through the codec, so that a test also shows that what is said can be sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
from typing import Any, Self

from actors.system.actor import (
    Actor,
    ActorLost,
    ActorRef,
    BlobRef,
    CannotGoOn,
    DeadlineExceeded,
    HandlerFailed,
    seed_for,
)
from actors.system.clock import Clock, RealClock, ThreadWatch, ThreadWork
from actors.system.message import DescribeWork, Done, Message, Request, decode, encode
from actors.system.patience import NEVER_SEEN


class InProcessBlobs:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._serial = 0

    async def put(self, value: Any) -> BlobRef:
        self._serial += 1
        ref = BlobRef(f"blob-{self._serial}")
        self.values[ref.key] = value
        return ref

    async def get(self, ref: BlobRef) -> Any:
        return self.values[ref.key]

    async def drop(self, ref: BlobRef) -> None:
        self.values.pop(ref.key, None)


class InProcessPort:
    def __init__(self, stage: InProcessStage, name: str, incarnation: int) -> None:
        self.name, self.incarnation = name, incarnation
        self.clock: Clock = RealClock()
        self.random = random.Random(seed_for(0, name))
        self.blobs = stage.blobs
        self._stage, self._ids = stage, 0
        self._watch = ThreadWatch()

    async def ask(
        self, to: ActorRef, request: Request, deadline_s: float | None = None, *, unless_at_work: bool = False
    ) -> Any:
        if deadline_s is not None and unless_at_work:
            return await self._ask_patiently(to, request, deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._stage.deliver(to, request)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{to.name} did not answer {request.tag} in {deadline_s} s") from error

    async def _ask_patiently(self, to: ActorRef, request: Request, deadline_s: float) -> Any:
        answer, seen = asyncio.ensure_future(self._stage.deliver(to, request)), NEVER_SEEN
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(deadline_s):
                        return await asyncio.shield(answer)
                done = (await self.ask(to, DescribeWork())).done
                if done == seen:
                    raise DeadlineExceeded(f"{to.name} did not answer {request.tag} in {deadline_s} s and does nothing")
                seen = done
        finally:
            answer.cancel()

    def tell(self, to: ActorRef, message: Message) -> None:
        self.start_task(self._told(to, message))

    async def _told(self, to: ActorRef, message: Message) -> None:
        try:
            await self._stage.deliver(to, message)
        except ActorLost:
            pass  # as promised: lost silently

    async def offload(self, cost: Any, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, self._watch.do, work)

    def thread_work(self) -> ThreadWork:
        return self._watch.work()

    def start_task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._stage.tasks.add(task)
        task.add_done_callback(self._stage.tasks.discard)
        return task

    def fresh_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self.incarnation}-{self._ids}"


class InProcessStage:
    """Example:
    async with InProcessStage() as stage:
        await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
        await stage.port.ask(ActorRef("balancer"), DescribeBalancer())
    """

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.blobs = InProcessBlobs()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.port = InProcessPort(self, "test", 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for actor in self.actors.values():
            await actor.stop()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def host(self, name: str, actor: Actor, incarnation: int = 0) -> ActorRef:
        actor.port = InProcessPort(self, name, incarnation)
        await actor.start()
        self.actors[name] = actor
        return ActorRef(name)

    def lose(self, name: str) -> None:
        """From now on the actor is gone."""
        del self.actors[name]

    async def deliver(self, to: ActorRef, message: Message) -> Message:
        actor = self.actors.get(to.name)
        if actor is None:
            raise ActorLost(f"{to.name} is gone")
        sent = decode(message.tag, encode(message))
        try:
            reply = await actor.handle(sent) or Done()
        except (ActorLost, asyncio.CancelledError):
            raise
        except CannotGoOn as reason:
            raise CannotGoOn(str(reason)) from reason
        except Exception as error:  # whatever a handler raises becomes the asker's HandlerFailed
            raise HandlerFailed(f"{to.name}: {error}\n{traceback.format_exc()}") from error
        if self.actors.get(to.name) is not actor:
            raise ActorLost(f"{to.name} died before it answered")
        return decode(reply.tag, encode(reply))
