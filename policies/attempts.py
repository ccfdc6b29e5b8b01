"""When work that fails again and again is set aside: what kills or breaks each worker that gets it is poison.

Invariants:
- an item is set aside after `most` workers have failed it, or died with it, and not before;
- workers that were not there when it was handed to them do not count against it; it waits `patience_s` for one.
"""

from __future__ import annotations

ABSENT_S = 0.5
"""A worker that loses an item sooner than that never had it."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 5.0


class Attempts:
    """The tries of one item."""

    def __init__(self, most: int, patience_s: float) -> None:
        self._most, self._patience_s = most, patience_s
        self.strikes = 0
        """Workers that have failed it."""
        self._absent_since: float | None = None
        self._in_a_row = 0

    def pause_after_failure(self, now_s: float, held_s: float) -> float | None:
        """Seconds until the next try, None if the item is to be set aside.

        Args:
            now_s: of a clock that never goes back.
            held_s: how long the worker that failed had it.
        """
        self._in_a_row += 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._in_a_row - 1))
        if held_s < ABSENT_S:
            if self._absent_since is None:
                self._absent_since = now_s
            return None if now_s - self._absent_since > self._patience_s else pause
        self._absent_since, self._in_a_row = None, 1
        self.strikes += 1
        return None if self.strikes >= self._most else FIRST_PAUSE_S
