"""What a run has to tell, kept until it was fetched.

Invariants:
- reports are numbered from 0 in the order in which they came, and whoever fetches goes on from a number;
- what was fetched is held nowhere: a run of any length holds only what its driver has not asked for yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from policies.run_progress import Report, StepFigures


class UntoldReports:
    """The reports of a run that may have reached nobody.

    Args:
        reports: those that it begins with.
    """

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._reports: deque[Report] = deque(reports)
        self._first = 0
        """The number of the first that is kept."""

    @property
    def next(self) -> int:
        """The number of the report that comes next."""
        return self._first + len(self._reports)

    def add(self, *reports: Report) -> None:
        self._reports.extend(reports)

    def were_fetched(self, below: int) -> None:
        """Those with a number below this one reached whoever fetches them, and need not be told again."""
        while self._reports and self._first < below:
            self._reports.popleft()
            self._first += 1

    def since(self, number: int) -> tuple[Report, ...]:
        """Those from a number on, as far as they are kept: the last one is number `next - 1`."""
        return tuple(self._reports)[max(0, number - self._first) :]

    def figures(self) -> tuple[StepFigures, ...]:
        """Those that are figures of steps and evaluations."""
        return tuple(report for report in self._reports if isinstance(report, StepFigures))
