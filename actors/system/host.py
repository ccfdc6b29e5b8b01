"""What hosts one actor inside its process, whatever carries its messages: its port and its life.

Invariants:
- no message reaches the actor before `start()` has returned, none after `stop()` has begun;
- when the actor ends, its handlers and tasks are cancelled first, and have ended, before `stop()` runs;
- blocking work has one thread per actor and runs in order.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any

from actors.system.actor import Actor, ActorRef, Blobs, CannotGoOn, seed_for
from actors.system.carried_folder import CarriedFolder
from actors.system.clock import Clock, RealClock, ThreadWatch, ThreadWork
from actors.system.mailbox import Mailbox
from actors.system.message import Message, Request
from actors.system.stage import Part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """All that a new process needs in order to become an actor."""

    name: str
    incarnation: int
    seed: int
    module: str
    qualname: str
    arguments: bytes
    """Pickled keyword arguments: opened only when the environment is set and the class is imported."""
    carried: dict[str, CarriedFolder] = field(default_factory=dict)
    """Further arguments: folders, whose paths on this process's node the actor is given."""
    threads: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    log_file: str | None = None


def importable(part: Part) -> tuple[str, str]:
    """Module and qualified name of the part's class. Raises `ValueError` if another process could not import it."""
    module, qualname = part.actor.__module__, part.actor.__qualname__
    if module == "__main__" or "<locals>" in qualname:
        raise ValueError(
            f"actor {part.name!r}: {module}.{qualname} can't be imported by another process; "
            "define it at the top level of a module other than the script that is run"
        )
    return module, qualname


def load_class(module: str, qualname: str) -> type[Actor]:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


class ActorPort:
    """The `Port` of a real stage."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        seed: int,
        blobs: Blobs,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.name = mailbox.name
        self.incarnation = mailbox.incarnation
        self.clock: Clock = RealClock()
        self.random = random.Random(seed_for(seed, self.name))
        self.blobs = blobs
        self._mailbox = mailbox
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._serial = itertools.count(1)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        self._thread_watch = ThreadWatch()

    def ask[R: Message](
        self, to: ActorRef, request: Request[R], deadline_s: float | None = None, *, unless_at_work: bool = False
    ) -> CoroutineType[Any, Any, R]:
        return self._mailbox.ask(to, request, deadline_s, unless_at_work=unless_at_work)

    def tell(self, to: ActorRef, message: Message) -> None:
        self._mailbox.tell(to, message)

    async def offload[T](self, cost: Callable[[], float], work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._thread_watch.do, work)

    def thread_work(self) -> ThreadWork:
        return self._thread_watch.work()

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def fresh_id(self) -> str:
        return f"{self.name}-{self.incarnation}-{next(self._serial)}"

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Cancel the tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def release_thread(self) -> None:
        """Let the thread end after the work that it has; nobody waits for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class ActorHost:
    """One actor's life: construct, start, stop. Must be made on the running loop."""

    def __init__(
        self,
        spec: HostSpec,
        blobs: Blobs,
        unpickle: Callable[[bytes], Any],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.spec = spec
        self.mailbox = Mailbox(spec.name, spec.incarnation, self._handle)
        self.port = ActorPort(self.mailbox, seed=spec.seed, blobs=blobs, on_failure=on_failure)
        self._unpickle = unpickle
        self._actor: Actor | None = None

    def construct(self, folders: dict[str, str]) -> str:
        """Import the class and call it, with the paths of carried folders. Returns why that failed, if it did."""
        try:
            cls = load_class(self.spec.module, self.spec.qualname)
            self._actor = cls(**self._unpickle(self.spec.arguments), **folders)
            self._actor.port = self.port
        except Exception:  # a boundary: whatever it is, the stage's user must read it
            logger.exception("%s could not be made", self.spec.name)
            return traceback.format_exc()
        return ""

    async def start(self) -> str:
        """Run the actor's `start()`, then let messages in. Returns why that failed, if it did."""
        assert self._actor is not None, "construct() comes first"
        try:
            await self._actor.start()
        except CannotGoOn as reason:
            logger.exception("%s can't start", self.spec.name)
            return str(reason)
        except Exception:  # see construct
            logger.exception("%s could not start", self.spec.name)
            return traceback.format_exc()
        self.mailbox.inbox.open()
        return ""

    async def stop(self) -> None:
        """End handlers and tasks, then run the actor's `stop()`; what it raises is logged."""
        await self.mailbox.inbox.close()
        await self.port.close()
        if self._actor is not None:
            try:
                await self._actor.stop()
            except Exception:  # the stage goes on closing whatever one actor does
                logger.exception("%s did not stop cleanly", self.spec.name)
        self.port.release_thread()
        await self.mailbox.close()

    async def _handle(self, message: Message) -> Message | None:
        assert self._actor is not None, "the inbox is closed until the actor has started"
        return await self._actor.handle(message)
