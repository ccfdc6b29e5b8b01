"""What a way of keeping calls apart is, whichever it is."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from env.tool_call import Limits, ToolCall, ToolResult

type IsolationKind = Literal["zygote", "jail-per-call"]
"""How calls are kept apart: each forked by a warm interpreter into namespaces of its own, within a long-lived jail; or
each in a fresh jail with a fresh interpreter, which is slow and simple."""


NO_CGROUP = (
    "memory is limited for each process alone, by its data and its address space, since no cgroup can be made here: "
)
"""And why that is so (`env.cgroup_hierarchy.obstacle`)."""
ONE_USER = "this process may not use other users' ids: calls share one, and the limit on processes is for all of them"

logger = logging.getLogger(__name__)


class SandboxDescription(NamedTuple):
    """What a sandbox says of itself; for the books."""

    sandbox: str
    """What keeps calls away from the host, such as `nsjail`."""
    isolation: str
    """How calls are kept apart from each other."""
    weaknesses: tuple[str, ...]
    """What this host can't give, and what stands in for it; one sentence each."""
    live_sessions: int = 0
    """Sessions that have a process."""


class Isolation(Protocol):
    """A way to keep calls apart. It is given one call at a time for each of its workers."""

    weaknesses: tuple[str, ...]
    """What this host can't give, and what stands in for it; one sentence each."""

    async def run(self, call: ToolCall, limits: Limits, worker: int, running: Running) -> ToolResult:
        """Raises `OSError` if the host can't start a program now."""
        ...

    async def end_all(self) -> None:
        """End what was kept for later calls; no call is running."""
        ...

    def close(self) -> None:
        """Give back everything, after `end_all`. Blocks."""
        ...


class Running:
    """A call on its way; `abort` ends it at whatever point it is."""

    def __init__(self) -> None:
        self.aborted = False
        self._end: Callable[[], None] | None = None

    def ends_by(self, end: Callable[[], None]) -> None:
        """Say what ends the program that now runs for the call."""
        self._end = end
        if self.aborted:
            end()

    def abort(self) -> None:
        self.aborted = True
        if self._end is not None:
            self._end()


@functools.cache
def say_once(weaknesses: tuple[str, ...]) -> None:
    """Into the log, once for each process."""
    for weakness in weaknesses:
        logger.warning("weaker isolation: %s", weakness)
