"""An event loop on a virtual clock: time jumps from one timer to the next, and nothing else moves it.

Invariants:
- time is an integer number of nanoseconds; timers are run in the order of (time, when they were set);
- callbacks that are ready run first in, first out; with `explore`, the order between actors is drawn from a seed, and
  each actor's own callbacks keep theirs, as they would in a process of its own;
- nothing comes from outside (`virtual_confinement`);
- nothing waits for ever: when no callback is ready and no timer is set, `Stalled` is raised;
- the garbage collector is off while the loop runs, since finalizers would run at times that depend on addresses.

Sources: CPython's asyncio.base_events for what a loop owes to tasks; madsim and FoundationDB for the idea.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import itertools
import logging
import sys
from asyncio import Task
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any

from actors.system.virtual_confinement import ConfinedLoop, watched

logger = logging.getLogger(__name__)

NS = 1_000_000_000

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("greenroom_virtual_owner", default="")
"""The actor on whose behalf a callback runs."""


class Stalled(RuntimeError):
    """Everybody waits and nothing will ever happen: a wake-up was lost."""


type Call = tuple[Any, ...]
"""A function, and what it is called with: taken as one (nobody names a loop's `callback`), it is packed once."""


class VirtualHandle(list[Any]):
    """A callback that can be cancelled: `[when it is due, its serial number, its context, its call]`.

    A list, since timers are sorted hundreds of thousands of times, which takes no step of the interpreter this way.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """As `asyncio.Handle.cancel`; what it held is free at once."""
        self[2:] = None, None

    def cancelled(self) -> bool:
        return self[3] is None

    def __call__(self) -> None:
        """Call back, in the context that is entered already."""
        if self[3] is not None:
            function, *arguments = self[3]
            function(*arguments)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class VirtualLoop(ConfinedLoop):
    """See the module's docstring. `explore` draws the order of actors that are ready at the same moment."""

    def __init__(self, explore: Random | None = None) -> None:
        self._now = 0
        self._ready: deque[tuple[Context, Call]] = deque()
        self._timers: list[VirtualHandle] = []
        self._serial = 0
        self._line: deque[list[Any]] = deque()
        """As timers."""
        self._delay_ns = 0
        self._explore = explore
        self.explores = explore is not None
        self._queues: dict[str, deque[tuple[Context, Call]]] = {}
        self._make_ready: Callable[[tuple[Context, Call]], object]
        self._make_ready = self._ready.append if explore is None else self._enqueue
        self._running = self._closed = False
        self._failure: BaseException | None = None
        self._cut_short = False
        self._names = map(str, itertools.count(1))

    # --- time -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Nanoseconds since the loop was made."""
        return self._now

    def time(self) -> float:
        return self._now / NS

    async def sleep(self, seconds: float) -> None:
        """As `Clock.sleep`."""
        future: asyncio.Future[None] = asyncio.Future()  # of the loop that runs: a dictionary less than `loop=self`
        handle = self.call_later(seconds, _wake, future)
        try:
            await future
        except BaseException:  # whoever slept is cancelled, and nobody is to be woken
            handle.cancel()
            raise

    # --- scheduling -----------------------------------------------------------------------------

    def call_soon(self, *call: Any, context: Context | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - see `Call`
        """What is called in a context that is given has no handle: so do tasks and futures, which cancel nothing, and
        of whose callbacks there are millions."""
        if context is None:
            handle = VirtualHandle((self._now, 0, copy_context(), call))
            self._make_ready((handle[2], (handle,)))
            return handle
        self._make_ready((context, call))
        return None

    def call_at_ns(self, when: int, *call: Any, context: Context | None = None) -> VirtualHandle:
        """Call back at a time in nanoseconds, at once if it is past."""
        if when < self._now:
            when = self._now
        self._serial += 1
        handle = VirtualHandle((when, self._serial, copy_context() if context is None else context, call))
        heapq.heappush(self._timers, handle)
        return handle

    def set_line(self, delay_ns: int) -> None:
        """What is put on the line runs `delay_ns` later: as a timer would, without the cost of sorting."""
        assert not self._line or delay_ns == self._delay_ns, "what is on the line has its time already"
        self._delay_ns = delay_ns

    def put_on_line(self, *call: Any, context: Context) -> None:
        """See `set_line`."""
        self._serial += 1
        self._line.append([self._now + self._delay_ns, self._serial, context, call])

    def call_later(self, delay: float, *call: Any, context: Context | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - see `Call`
        # As call_at_ns, without its arguments' being packed once more: engines set a timer for every step.
        after = round(delay * NS)
        self._serial += 1
        when = self._now + after if after > 0 else self._now
        handle = VirtualHandle((when, self._serial, copy_context() if context is None else context, call))
        heapq.heappush(self._timers, handle)
        return handle

    def call_at(self, when: float, *call: Any, context: Context | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - see `Call`
        return self.call_at_ns(round(when * NS), *call, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Any = None, eager_start: bool = False) -> Any:
        # Not `name`, which asyncio takes from a counter of the whole process; these also say which task is older.
        return Task(coro, loop=self, name=next(self._names), context=context, eager_start=eager_start)

    def tasks_of(self, owner: str) -> list[asyncio.Task[Any]]:
        """The tasks that were made on behalf of `owner` and have not ended, oldest first."""
        found = asyncio.all_tasks(self)  # noqa: TID251 - a set, but put in order here
        owned = [task for task in found if task.get_context().get(OWNER, "") == owner]
        return sorted(owned, key=lambda task: int(task.get_name()))

    # --- running --------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` is done. Raises `Stalled` if it never will be, and what a failing callback raised."""
        assert not self._running and not self._closed, "a virtual loop runs once at a time"
        collecting = gc.isenabled()
        hooks = sys.get_asyncgen_hooks()
        task = asyncio.ensure_future(future, loop=self)
        gc.disable()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        self._running = True
        asyncio._set_running_loop(self)
        try:
            with watched(self):
                try:
                    if self._explore is None:
                        self._run(task)
                    else:
                        self._run_exploring(task, self._explore)
                except BaseException:  # whatever cuts the run short: an interrupt does, too
                    self._cut_short = True
                    raise
                finally:
                    self._put_away()
        finally:
            asyncio._set_running_loop(None)
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
        return task.result()

    def _run(self, task: asyncio.Future[Any]) -> None:
        ready, line, timers = self._ready, self._line, self._timers
        while True:
            while ready:
                context, call = ready.popleft()
                context.run(*call)
            if task.done():
                return
            if line and (not timers or line[0] < timers[0]):
                self._now, _, context, call = line.popleft()
                context.run(*call)
            elif timers:
                when, _, context, call = heapq.heappop(timers)
                if call is not None:  # a timer that was cancelled does not move the clock
                    self._now = when
                    context.run(*call)
            else:
                raise self._stalled()

    def _run_exploring(self, task: asyncio.Future[Any], explore: Random) -> None:
        while not task.done():
            if self._failure is not None:
                self._raise_failure()
            if not self._queues:
                self._advance()
                continue
            owners = list(self._queues)
            owner = owners[explore.randrange(len(owners))]
            queue = self._queues[owner]
            context, call = queue.popleft()
            if not queue:
                del self._queues[owner]
            context.run(*call)
        if self._failure is not None:
            self._raise_failure()

    def _advance(self) -> None:
        """Move the clock to the next timer, and make ready together what is due at that moment."""
        line, timers = self._line, self._timers
        while not self._queues:
            if not line and not timers:
                raise self._stalled()
            when = min(queue[0][0] for queue in (line, timers) if queue)
            while (line and line[0][0] <= when) or (timers and timers[0][0] <= when):
                if line and (not timers or line[0] < timers[0]):
                    self._now, _, context, call = line.popleft()
                    self._enqueue((context, call))
                    continue
                timer = heapq.heappop(timers)
                if not timer.cancelled():  # one that was does not move the clock
                    self._now = when
                    self._enqueue((timer[2], (timer,)))  # not its call: it may be cancelled before its turn comes

    def _enqueue(self, ready: tuple[Context, Call]) -> None:
        """Make a callback ready, in the queue of the actor on whose behalf it runs."""
        self._queues.setdefault(ready[0].get(OWNER, ""), deque()).append(ready)

    def _stalled(self) -> Stalled:
        return Stalled(f"at {self.time():.6f} s of virtual time everybody waits and no timer is set")

    def _put_away(self) -> None:
        """At the end: cancel the tasks that are left, and let them end as far as they can without time passing."""
        for task in sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name())):  # noqa: TID251 - in order
            task.cancel()
        self._make_ready = self._ready.append
        for queue in self._queues.values():
            self._ready.extend(queue)
        for _ in range(1_000_000):
            if not self._ready:
                return
            context, call = self._ready.popleft()
            try:
                context.run(*call)
            except Exception:  # the run is over, and has its result
                logger.debug("while a run was put away", exc_info=True)

    def fail(self, error: BaseException) -> None:
        """End the run with `error` after the callback that runs now."""
        if self._failure is None and self._running:
            self._failure = error
            if self._explore is None:
                self._ready.appendleft((copy_context(), (self._raise_failure,)))

    @property
    def failing(self) -> bool:
        """Whether the run is to end with an error, or is just doing so."""
        return self._failure is not None or self._cut_short

    def _raise_failure(self) -> None:
        assert self._failure is not None, "fail() has set it"
        raise self._failure

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.call_soon(self.create_task, generator.aclose())

    # --- what tasks and libraries ask of a loop ----------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self._line.clear()
        self._queues.clear()

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody took. Where the run was cut short, what tasks come to is a consequence of that."""
        level = logging.DEBUG if self._cut_short else logging.ERROR
        logger.log(level, "%s", context.get("message"), exc_info=context.get("exception"))

    async def shutdown_asyncgens(self) -> None:
        return None


def interrupt(*_: object) -> None:
    """A handler for signals: ends the virtual run of this thread between two callbacks; without one, or the second
    time, raises `KeyboardInterrupt` at once.

    What is raised in the middle of a callback may be lost there: in a finalizer, or as some actor's failure.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if not isinstance(loop, VirtualLoop) or loop.failing:
        raise KeyboardInterrupt
    loop.fail(KeyboardInterrupt())


def run_virtual[T](main: Coroutine[Any, Any, T], *, explore: int | None = None) -> T:
    """Run a coroutine to its end on a virtual loop of its own, as `asyncio.run` does on a real one.

    `explore` is a seed: the order of actors that are ready at the same moment is drawn from it.
    Raises `Stalled`, or what `main` raises.
    """
    loop = VirtualLoop(None if explore is None else Random(explore))
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
