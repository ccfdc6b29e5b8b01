"""Which groups are begun, learned from and dropped, when rollouts may be ahead of the learner.

Invariants:
- a step that is open wants a number of groups; beyond those, at most `max_staleness` steps' worth of groups are under
  way or ready: with 0 nothing is begun before the weights of the day are out (synchronous training);
- each number is begun once, and leaves once: learned from, or dropped as too old; those that have not left yet are
  `held`, and a run that is resumed begins them again;
- no token of a group that is learned from is more than `max_staleness` versions behind the learner: a group is as old
  as its oldest token;
- with `too_old = "wait"` none becomes too old (if generators have the weights that they are said to have): a step
  waits where going on without a group that is under way would leave it, or another one, behind.

A version here is a count of optimiser steps. Numbers are positions in the stage's stream of problems.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

TooOld = Literal["drop", "wait"]


class GroupFlow:
    """The groups of one stage.

    Args:
        prompts: groups that a step begins with.
        steps: of the whole stage: none is begun that no step is left for.
        done: steps done.
        cursor: the first number that was never begun.
        again: numbers below it that are to be begun again.
        version: that the generators have.

    Example:
        flow.want(count)                     # a step is open
        while (taken := flow.take()) is None:
            for number in flow.to_begin(): begin(number)
            ...                              # until a group is there: flow.finished(number, oldest)
        flow.stepped(version)                # learned, and the generators have the new weights
    """

    def __init__(
        self,
        *,
        prompts: int,
        max_staleness: int,
        too_old: TooOld,
        steps: int,
        done: int = 0,
        cursor: int = 0,
        again: Iterable[int] = (),
        version: int = 0,
    ) -> None:
        self._prompts, self._max_staleness, self._too_old = prompts, max_staleness, too_old
        self._steps, self._done = steps, done
        self._again = sorted(again)
        self._under_way: dict[int, int] = {}
        """Number -> version that the generators had when it was begun; its tokens are of this one or of later ones."""
        self._ready: dict[int, int] = {}
        """Number -> version of its oldest token."""
        self._wanted = 0
        self._version = version
        self.cursor = cursor
        """The next number that was never begun."""
        self.dropped: list[int] = []
        """Those found too old since the last step, in the order in which they were."""

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers that were begun, or are to be begun again, and have not left, in order."""
        return tuple(sorted([*self._again, *self._under_way, *self._ready]))

    def want(self, count: int) -> None:
        """The open step wants `count` groups (more)."""
        assert not self._wanted, "a step wants more when it has got what it wanted"
        self._wanted = count

    def to_begin(self) -> list[int]:
        """Numbers to begin now, each told once."""
        ahead = min(self._max_staleness, max(0, self._steps - 1 - self._done))
        room = ahead * self._prompts + self._wanted - len(self._under_way) - len(self._ready)
        begun = []
        for _ in range(room):
            if self._again:
                number = self._again.pop(0)
            else:
                number, self.cursor = self.cursor, self.cursor + 1
            self._under_way[number] = self._version
            begun.append(number)
        return begun

    def finished(self, number: int, oldest: int | None) -> None:
        """A group is there; `oldest` is the version of its oldest token, None if it has none."""
        del self._under_way[number]
        self._ready[number] = self._version if oldest is None else oldest

    def take(self) -> list[int] | None:
        """All groups that the open step wants, in the order of their numbers; None while they are not to be had.

        Of those that are there the oldest come first. Those that are too old are dropped.
        """
        for number in [each for each, oldest in self._ready.items() if self._version - oldest > self._max_staleness]:
            del self._ready[number]
            self.dropped.append(number)
        oldest_first = sorted(self._ready, key=lambda number: (self._ready[number], number))
        chosen, left = oldest_first[: self._wanted], oldest_first[self._wanted :]
        if len(chosen) < self._wanted or (self._too_old == "wait" and not self._in_time(left)):
            return None
        for number in chosen:
            del self._ready[number]
        self._wanted = 0
        return sorted(chosen)

    def stepped(self, version: int) -> None:
        """The open step is done, and the generators have the weights `version`."""
        assert version >= self._version, f"version {version} after {self._version}"
        self._done += 1
        self._version = version
        self.dropped = []

    def _in_time(self, left: list[int]) -> bool:
        """Whether all that this step leaves behind can be learned from in time, `prompts` in each step to come.

        Those that have to be learned from first go first; if one of them is late then, one is late in every order.
        """
        oldest = sorted([*self._under_way.values(), *[self._ready[number] for number in left]])
        steps_left = [version + self._max_staleness - self._version for version in oldest]
        return all(place <= steps * self._prompts for place, steps in enumerate(steps_left, 1))
