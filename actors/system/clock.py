"""Time, as actors see it: injected, so that the same code runs in real and in virtual time.

Code in actors/ must not import `time`; lint enforces it. This file and the stages are the exceptions.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Timer(Protocol):
    """A callback that is to come."""

    def cancel(self) -> object:
        """Let it not come; too late is allowed."""
        ...


class Clock(Protocol):
    """Monotonic time. The origin is arbitrary; only differences mean something."""

    def now_ns(self) -> int:
        """Nanoseconds since the clock's origin."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task for `seconds` of this clock."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call back once, `delay` seconds from now: cheaper than a task that sleeps."""
        ...


def seconds_since(clock: Clock, start_ns: int) -> float:
    """Seconds of `clock` since `start_ns`."""
    return (clock.now_ns() - start_ns) / 1e9


class ThreadWork(NamedTuple):
    """What the thread of an actor has done so far."""

    jobs: int
    """That came to an end."""
    seconds: int
    """Whole seconds of processor time, added up over its jobs, the one at work included: a thread that hangs takes
    none, and an endless row of jobs that do nothing takes none either."""


class ThreadWatch:
    """Keeps count of a thread's work, for others to read. One that waits (for a disk, say) does not work meanwhile."""

    def __init__(self) -> None:
        self._jobs = self._seconds = 0
        self._at_work: tuple[int, float] | None = None
        """The clock of the thread that has a job, and what it showed when the job began."""

    def do[T](self, work: Callable[[], T]) -> T:
        """Do a job, on the thread that is watched."""
        began = time.thread_time()
        self._at_work = time.pthread_getcpuclockid(threading.get_ident()), began
        try:
            return work()
        finally:
            self._at_work = None
            self._jobs += 1
            self._seconds += int(time.thread_time() - began)

    def work(self) -> ThreadWork:
        """So far; from any thread."""
        at_work = self._at_work
        now = 0 if at_work is None else int(time.clock_gettime(at_work[0]) - at_work[1])
        return ThreadWork(self._jobs, self._seconds + now)


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
