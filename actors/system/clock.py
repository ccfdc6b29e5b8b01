"""Time, as actors see it: injected, so that the same code runs in real and in virtual time.

Code in actors/ must not import `time`; lint enforces it. This file and the stages are the exceptions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


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


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
