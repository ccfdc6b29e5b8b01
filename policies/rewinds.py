"""How often a run goes back before that is pointless.

Invariant: it goes back at most `MOST` times in a row without having come further than ever before; so a run whose
learner dies again and again, at one place or now here and now there, ends.
"""

from __future__ import annotations

MOST = 3


class Rewinds:
    """The rewinds of one run."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._furthest = (-1, -1)
        self.in_a_row = 0

    def may_go_back_from(self, reached: tuple[int, int]) -> bool:
        """Count a return from a place; whether it is worth it once more.

        Args:
            reached: how many stages and evaluations are done, and steps of the one at work.
        """
        if reached > self._furthest:
            self._furthest, self.in_a_row = reached, 0
        self.in_a_row += 1
        return self.in_a_row <= self._most
