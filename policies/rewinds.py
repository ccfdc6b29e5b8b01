"""How often a run goes back from the same place before that is pointless.

Invariant: it goes back from a place at most `MOST` times in a row; a run that has come further counts anew.
"""

from __future__ import annotations

MOST = 3


class Rewinds:
    """The rewinds of one run."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._place = ""
        self.in_a_row = 0

    def may_go_back_from(self, place: str) -> bool:
        """Count a return from a place; whether it is worth it once more."""
        self.in_a_row = self.in_a_row + 1 if place == self._place else 1
        self._place = place
        return self.in_a_row <= self._most
