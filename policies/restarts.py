"""When an actor that died is started again: at once, after a pause, or no more.

Invariants:
- of any `window_s` seconds, no more than `most` see a restart;
- who dies young more than `most` times in a row is not started again, however long each of its starts has taken;
- who dies young is started again later each time, up to `LONGEST_PAUSE_S`; who has lived for `STEADY_S` begins anew.
"""

from __future__ import annotations

from collections import deque

STEADY_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class RestartBudget:
    """The restarts of one actor.

    Args:
        most: restarts within any `window_s` seconds.
    """

    def __init__(self, most: int, window_s: float) -> None:
        self._most, self._window_s = most, window_s
        self._restarts: deque[float] = deque()
        self._young = 0

    def pause_after_death(self, now_s: float, lived_s: float) -> float | None:
        """Seconds until it is to be started again, None if it is not to be.

        Args:
            now_s: of a clock that never goes back.
            lived_s: since its start was through; 0 if it never was.
        """
        while self._restarts and now_s - self._restarts[0] >= self._window_s:
            self._restarts.popleft()
        self._young = 0 if lived_s >= STEADY_S else self._young + 1
        if len(self._restarts) >= self._most or self._young > self._most:
            return None
        pause = 0.0 if self._young < 2 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._young - 2))
        self._restarts.append(now_s + pause)
        return pause
