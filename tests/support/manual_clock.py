"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

TURNS_OF_THE_LOOP = 20
"""Enough for what a wake-up sets off to come to rest."""


class ManualClock:
    """Example:
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(2.0))
    await clock.run()  # until nobody sleeps
    """

    def __init__(self) -> None:
        self._now = self._count = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ns(self) -> int:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + round(seconds * 1e9), self._count, future))
        await future

    def call_later(self, delay: float, callback: Callable[[], object], /) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda ended: None if ended.cancelled() else callback())
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + round(delay * 1e9), self._count, future))
        return future

    async def run(self, until_seconds: float = float("inf")) -> None:
        """Wake sleepers in order until none is left, or until `until_seconds` since the start."""
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until_seconds * 1e9:
            when, _, future = heapq.heappop(self._sleepers)
            if not future.done():  # else its sleeper was cancelled
                self._now = when
                future.set_result(None)
                await self._settle()
        if until_seconds != float("inf"):
            self._now = max(self._now, round(until_seconds * 1e9))

    async def _settle(self) -> None:
        for _ in range(TURNS_OF_THE_LOOP):
            await asyncio.sleep(0)
