"""Coroutines that stand or fall together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def all_done(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run coroutines side by side; where one raises, the others have ended when that is raised on."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
