"""Whether a group's rollouts become longer or shorter than others: a gamma frailty, learned from its ends.

Rollouts of one group answer the same problem. Each is at risk to end in every bucket of tokens that it goes through; a
group multiplies that risk by a factor of its own. Of a group of which `ended` rollouts have ended where `risk` ends
were to be expected, those still running counted for as far as they have come, the factor is expected to be

    (SHAPE + ended) / (SHAPE + risk)

if factors of groups follow a gamma distribution of mean 1 and variance 1 / SHAPE (Clayton, 1978). Factors are rounded
to steps of the square root of 2, which makes `KINDS` of groups; for each there is a prediction.

Invariants: a group that has shown nothing is of the usual kind; so is, for ever, a rollout that stands alone.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import pairwise

SHAPE = 2.0
FACTORS = tuple(2.0 ** (step / 2) for step in range(-4, 5))
"""Of the kinds, those whose rollouts become longest first. With steps of 2, a group had to show more to count as long
than to count as short, which let too many in at the start."""
KINDS = len(FACTORS)
USUAL = FACTORS.index(1.0)
"""The kind of groups of which nothing is known."""
_BETWEEN = tuple((one * next_one) ** 0.5 for one, next_one in pairwise(FACTORS))


class Group:
    """What a group's rollouts have shown."""

    __slots__ = ("ended", "kind", "name", "risk_of_ended", "risk_of_running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = 0
        self.risk_of_ended = 0.0
        """Ends that were to be expected of those that have ended."""
        self.risk_of_running = 0.0
        """And of those that run."""
        self.kind = USUAL

    def has_ended(self, risk: float) -> None:
        """A rollout came to its end, before which `risk` ends were to be expected of it."""
        self.ended += 1
        self.risk_of_ended += risk

    def compare(self) -> None:
        """Find its kind."""
        factor = (SHAPE + self.ended) / (SHAPE + self.risk_of_ended + self.risk_of_running)
        self.kind = bisect(_BETWEEN, factor)


class Groups:
    """Groups by name."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def named(self, name: str) -> Group:
        """The group of that name, a new one if nothing is known of it."""
        if name not in self._groups:
            self._groups[name] = Group(name)
        return self._groups[name]

    def kind(self, name: str) -> int:
        """The group's kind."""
        group = self._groups.get(name)
        return USUAL if group is None else group.kind

    def compare(self, running: Iterable[tuple[Group, float]]) -> None:
        """Find each group's kind.

        Args:
            running: of each rollout that runs, its group, and the ends that were to be expected of it so far.
        """
        for group in self._groups.values():
            group.risk_of_running = 0.0
        for group, risk in running:
            group.risk_of_running += risk
        for group in self._groups.values():
            group.compare()

    def forget_all_but(self, alive: set[str]) -> None:
        """Drop what is known of other groups."""
        self._groups = {name: group for name, group in self._groups.items() if name in alive}
