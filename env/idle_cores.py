"""How many cores of this machine had nothing to do: whoever starts programs can start more of them then.

A program that sleeps holds a place but no core. Counting places alone would leave cores idle behind sleeping programs;
counting none would let programs that compute push each other over their wall-clock limits. Cores that run what has a
lower priority (a positive nice value, as Ray's processes have) count as idle: calls run at the normal one and go first.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class IdleCores:
    """Idle cores since the last look. Source of the figures: proc(5), `/proc/stat`."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._idle, self._at = self._read(), time.monotonic()

    def since_last_look(self) -> float:
        """Cores that were idle on average since the last call of this, or since the object was made."""
        idle, at = self._read(), time.monotonic()
        ticks, seconds = idle - self._idle, at - self._at
        self._idle, self._at = idle, at
        return max(0.0, ticks / _TICKS_PER_SECOND / seconds) if seconds > 0 else 0.0

    def _read(self) -> int:
        """Ticks that all cores together spent on niced processes, idle, or waiting for a disk."""
        with self._stat.open() as file:
            fields = file.readline().split()
        return int(fields[2]) + int(fields[4]) + int(fields[5])
