"""What a drill does to the frames that reach one real process: late, lost (and sent again), or delivered twice.

Invariant: without a fault that was asked for, frames pass untouched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from actors.system.links import PeerUnreachable

FrameFaultKind = Literal["delay", "drop", "double"]


@dataclass(slots=True)
class _Fault:
    kind: FrameFaultKind
    left: int
    seconds: float
    done: asyncio.Event = field(default_factory=asyncio.Event)


class FrameFaults:
    """The faults that are to come for one process. They hit in the order in which they were asked for."""

    def __init__(self) -> None:
        self._faults: deque[_Fault] = deque()

    async def hit(self, kind: FrameFaultKind, frames: int, seconds: float) -> None:
        """Have the next `frames` frames suffer; returns when they have."""
        fault = _Fault(kind, frames, seconds)
        self._faults.append(fault)
        await fault.done.wait()

    async def pass_on(self, frame: bytes, deliver: Callable[[bytes], Awaitable[bytes]]) -> bytes:
        """Deliver a frame, or do to it what is to be done. Raises `PeerUnreachable` for one that is dropped."""
        if not self._faults:
            return await deliver(frame)
        fault = self._faults[0]
        fault.left -= 1
        if not fault.left:
            self._faults.popleft()
            fault.done.set()
        match fault.kind:
            case "delay":
                await asyncio.sleep(fault.seconds)
                return await deliver(frame)
            case "double":
                await deliver(frame)
                return await deliver(frame)
            case "drop":
                raise PeerUnreachable("a drill has dropped the frame")
