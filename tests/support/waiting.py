"""Waiting for what only shows when one looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""Far more than anything here takes: a machine that is busy with other work is no reason to fail."""


async def until[T](look: Callable[[], T]) -> T:
    """What `look` gives once that is true. Raises `AssertionError` when it still is not after two minutes."""
    gives_up = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < gives_up, f"did not happen in {PATIENCE_S:g} seconds; last seen: {seen!r}"
        await asyncio.sleep(0.01)
    return seen
