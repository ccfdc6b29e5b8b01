"""An event loop on a virtual clock: time jumps from one timer to the next, and nothing else moves it.

Invariants:
- time is an integer number of nanoseconds; timers are run in the order of (time, when they were set);
- callbacks that are ready run first in, first out; with `explore`, the order between actors is drawn from a seed, and
  each actor's own callbacks keep theirs, as they would in a process of its own;
- nothing comes from outside: threads, executors, sockets and child processes raise `NotVirtual`, also behind the
  loop's back (an audit hook watches while a virtual loop runs in the thread);
- nothing waits for ever: when no callback is ready and no timer is set, `Stalled` is raised;
- the garbage collector is off while the loop runs, since finalizers would run at times that depend on addresses.

Sources: CPython's asyncio.base_events for what a loop owes to tasks; madsim and FoundationDB for the idea.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from random import Random
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

NS = 1_000_000_000

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("greenroom_virtual_owner", default="")
"""The actor on whose behalf a callback runs."""

_FORBIDDEN_EVENTS = frozenset(
    {
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
        "socket.__new__",
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "time.sleep",
    }
)
_watching = threading.local()
_hooked = False


class NotVirtual(RuntimeError):
    """Something that virtual time has no place for: a thread, an executor, a socket, a child process."""


class Stalled(RuntimeError):
    """Everybody waits and nothing will ever happen: a wake-up was lost."""


class VirtualHandle:
    """A callback that can be cancelled, as `asyncio.Handle`."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Any, when: int) -> None:
        self._callback, self._args, self._context, self._when = callback, args, context, when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()  # what it held is free at once

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        """As `asyncio.TimerHandle.when`, in seconds."""
        return self._when / NS


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    return None


def _forbidden(what: str) -> Any:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise NotVirtual(f"{what} has no place in virtual time; reach the world through the actor's port")

    return refuse


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module's docstring. `explore` draws the order of actors that are ready at the same moment."""

    def __init__(self, explore: Random | None = None) -> None:
        self._now = 0
        self._ready: deque[VirtualHandle] = deque()
        self._timers: list[tuple[int, int, VirtualHandle]] = []
        self._serial = 0
        self._line: deque[tuple[int, int, VirtualHandle]] = deque()
        self._delay_ns = 0
        self._explore = explore
        self._queues: dict[str, deque[VirtualHandle]] = {}
        self._running = self._closed = False
        self._failure: BaseException | None = None
        self._tasks = 0
        self.callbacks = 0
        """Callbacks run so far."""

    # --- time -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Nanoseconds since the loop was made."""
        return self._now

    def time(self) -> float:
        return self._now / NS

    async def sleep(self, seconds: float) -> None:
        """As `Clock.sleep`."""
        future = self.create_future()
        handle = self.call_at_ns(self._now + round(seconds * NS), _wake, future)
        try:
            await future
        finally:
            handle.cancel()

    # --- scheduling -----------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = VirtualHandle(callback, args, context or contextvars.copy_context(), self._now)
        if self._explore is None:
            self._ready.append(handle)
        else:
            owner = handle._context.get(OWNER, "")
            queue = self._queues.get(owner)
            if queue is None:
                queue = self._queues[owner] = deque()
            queue.append(handle)
        return handle

    def call_at_ns(self, when: int, callback: Callable[..., Any], *args: Any, context: Any = None) -> VirtualHandle:
        """Run `callback` at a time in nanoseconds, at once if it is past."""
        when = max(when, self._now)
        handle = VirtualHandle(callback, args, context or contextvars.copy_context(), when)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, handle))
        return handle

    def set_line(self, delay_ns: int) -> None:
        """What is put on the line runs `delay_ns` later: as a timer would, without the cost of sorting."""
        assert not self._line or delay_ns == self._delay_ns, "what is on the line has its time already"
        self._delay_ns = delay_ns

    def put_on_line(self, callback: Callable[..., Any], *args: Any, context: Any) -> None:
        """See `set_line`."""
        self._serial += 1
        when = self._now + self._delay_ns
        self._line.append((when, self._serial, VirtualHandle(callback, args, context, when)))

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.call_at_ns(self._now + round(delay * NS), callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.call_at_ns(round(when * NS), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, context: Any = None, **options: Any) -> Any:
        # asyncio would take names from a counter of the whole process; these also say which task is older.
        self._tasks += 1
        return asyncio.Task(coro, loop=self, name=str(self._tasks), context=context, **options)

    def tasks_of(self, owner: str) -> list[asyncio.Task[Any]]:
        """The tasks that were made on behalf of `owner` and have not ended, oldest first."""
        found = asyncio.all_tasks(self)  # noqa: TID251 - a set, but put in order here
        owned = [task for task in found if task.get_context().get(OWNER, "") == owner]
        return sorted(owned, key=lambda task: int(task.get_name()))

    # --- running --------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` is done. Raises `Stalled` if it never will be, and what a failing callback raised."""
        assert not self._running and not self._closed, "a virtual loop runs once at a time"
        _watch()
        collecting = gc.isenabled()
        hooks = sys.get_asyncgen_hooks()
        task = asyncio.ensure_future(future, loop=self)
        gc.disable()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        self._running = True
        asyncio._set_running_loop(self)
        _watching.loop = self
        try:
            self._run(task)
        finally:
            self._put_away()
            _watching.loop = None
            asyncio._set_running_loop(None)
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
        return task.result()

    def _run(self, task: asyncio.Future[Any]) -> None:
        ready = self._ready
        while not task.done():
            if self._explore is not None:
                self._choose()
            if not ready:
                self._advance()
                continue
            handle = ready.popleft()
            self.callbacks += 1
            handle._context.run(handle._callback, *handle._args)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def _advance(self) -> None:
        """Move the clock to the next timer, and make ready what is due then. Raises `Stalled`."""
        handle = self._next_due()
        self._now = handle._when
        if self._explore is None:
            self._ready.append(handle)
            return
        due = [handle]  # what is due at the same moment is ready together
        while self._due_now():
            due.append(self._next_due())
        for each in due:
            self.call_soon(each._callback, *each._args, context=each._context)

    def _due_now(self) -> bool:
        return bool(
            (self._line and self._line[0][0] <= self._now) or (self._timers and self._timers[0][0] <= self._now)
        )

    def _next_due(self) -> VirtualHandle:
        timers, line = self._timers, self._line
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if line and (not timers or line[0] < timers[0]):
            return line.popleft()[2]
        if not timers:
            raise Stalled(f"at {self.time():.6f} s of virtual time everybody waits and no timer is set")
        return heapq.heappop(timers)[2]

    def _choose(self) -> None:
        """Make one callback ready, of an actor drawn among those that have some."""
        assert self._explore is not None
        if self._queues:
            owners = list(self._queues)
            owner = owners[self._explore.randrange(len(owners))]
            queue = self._queues[owner]
            self._ready.append(queue.popleft())
            if not queue:
                del self._queues[owner]

    def _put_away(self) -> None:
        """At the end: cancel the tasks that are left, and let them end as far as they can without time passing."""
        for task in sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name())):  # noqa: TID251 - in order
            task.cancel()
        self._explore = None
        for queue in self._queues.values():
            self._ready.extend(queue)
        for _ in range(1_000_000):
            if not self._ready:
                return
            handle = self._ready.popleft()
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception:  # the run is over, and has its result
                logger.debug("while a run was put away", exc_info=True)

    def fail(self, error: BaseException) -> None:
        """End the run with `error` after the callback that runs now."""
        self._failure = self._failure or error

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
        """An exception that nobody took."""
        logger.error("%s", context.get("message"), exc_info=context.get("exception"))

    async def shutdown_asyncgens(self) -> None:
        return None

    call_soon_threadsafe = _forbidden("another thread")
    run_in_executor = _forbidden("an executor")
    set_default_executor = _forbidden("an executor")
    add_reader = _forbidden("a file descriptor")
    add_writer = _forbidden("a file descriptor")
    add_signal_handler = _forbidden("a signal")
    create_connection = _forbidden("a socket")
    create_server = _forbidden("a socket")
    create_unix_connection = _forbidden("a socket")
    create_unix_server = _forbidden("a socket")
    create_datagram_endpoint = _forbidden("a socket")
    getaddrinfo = _forbidden("a socket")
    sock_connect = _forbidden("a socket")
    sock_recv = _forbidden("a socket")
    sock_sendall = _forbidden("a socket")
    sock_accept = _forbidden("a socket")
    subprocess_exec = _forbidden("a child process")
    subprocess_shell = _forbidden("a child process")
    connect_read_pipe = _forbidden("a pipe")
    connect_write_pipe = _forbidden("a pipe")


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


def _watch() -> None:
    """Add the audit hook, once per process: hooks can't be taken away, so this one looks whether a loop runs."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_audit)


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN_EVENTS and getattr(_watching, "loop", None) is not None:
        raise NotVirtual(f"{event} has no place in virtual time; reach the world through the actor's port")
