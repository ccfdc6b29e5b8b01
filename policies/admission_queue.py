"""Who is next among rollouts that wait: one of each group first, then the groups of which the longest have been seen.

Invariants:
- groups of which none has started come in order of arrival, before all others (probes: they tell how long a group is);
- the others go by the longest rollout that they have shown, longest first, as long ones must not end up alone in the
  tail; groups that have shown none yet may be the longest and go first;
- what is held is in proportion to those who wait and run, however many have come and gone
  (if `forget_finished_groups` is called when `known_groups` asks for it).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from policies.balancing import Wish

OUTDATED, LEAST_ENTRIES = 4, 64
"""The heap is cleared out when it has so many entries for each group that waits, and so many more."""


class AdmissionQueue:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Wish]] = {}
        self._probes: OrderedDict[str, None] = OrderedDict()
        """Groups of which none has started yet, in order of arrival."""
        self._started: set[str] = set()
        self._longest: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Key, number of the entry, group. A group's first entry with the key that it has now is the valid one."""
        self._arrivals = 0

    def add(self, wish: Wish) -> None:
        group = group_of(wish)
        members = self._groups.setdefault(group, {})
        if not members:
            if group in self._started:
                self._push(group)
            else:
                self._probes[group] = None
        members[wish.rollout] = wish

    def remove(self, wish: Wish) -> None:
        group = group_of(wish)
        members = self._groups[group]
        del members[wish.rollout]
        if not members:
            del self._groups[group]
            self._probes.pop(group, None)

    def started(self, wish: Wish) -> None:
        """The wish was granted (and removed)."""
        group = group_of(wish)
        self._probes.pop(group, None)
        self._started.add(group)
        if group in self._groups:
            self._push(group)

    def ended(self, group: str, tokens: int) -> None:
        """A rollout of the group came to `tokens` tokens."""
        if tokens > self._longest.get(group, 0):
            self._longest[group] = tokens
            if group in self._groups and group not in self._probes:
                self._push(group)

    @property
    def known_groups(self) -> int:
        """How many groups are remembered of which a rollout has started."""
        return len(self._started)

    def groups(self) -> set[str]:
        """Groups that wait."""
        return set(self._groups)

    def forget_finished_groups(self, alive: set[str]) -> None:
        """Drop what is known of groups that neither wait nor run."""
        keep = alive | self._groups.keys()
        self._started &= keep
        self._longest = {group: tokens for group, tokens in self._longest.items() if group in keep}

    def first(self) -> Wish:
        for group in self._probes:
            return next(iter(self._groups[group].values()))
        while True:
            key, _, group = self._heap[0]
            if group in self._groups and group not in self._probes and key == self._key(group):
                return next(iter(self._groups[group].values()))
            heapq.heappop(self._heap)  # outdated

    def _push(self, group: str) -> None:
        if len(self._heap) > OUTDATED * len(self._groups) + LEAST_ENTRIES:
            self._clear_out()
        self._arrivals += 1
        heapq.heappush(self._heap, (self._key(group), self._arrivals, group))

    def _clear_out(self) -> None:
        """Drop outdated entries: those of short groups sink, and nobody comes upon them while longer ones wait."""
        valid: dict[str, tuple[int, int, str]] = {}
        for entry in sorted(self._heap):
            key, _, group = entry
            if group in self._groups and group not in self._probes and key == self._key(group):
                valid.setdefault(group, entry)
        self._heap = list(valid.values())  # sorted, and so a heap

    def _key(self, group: str) -> int:
        """Groups that have shown no length yet may be the longest."""
        return -self._longest[group] if group in self._longest else -(1 << 62)


def group_of(wish: Wish) -> str:
    """Its group; a rollout that stands alone is one of its own."""
    return wish.group or wish.rollout
