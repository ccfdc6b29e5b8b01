"""Which trajectories an archive holds, by a fingerprint of 64 bits each.

Invariants:
- what was added is found, however long ago that was: a run that goes on from a checkpoint may play again, and say
  again, what it stored at any time before;
- it takes 8 to 16 bytes a trajectory, where a set of ids and checksums takes some 350: this is all that an archive's
  actor must hold for what it has stored, and the only part of it that grows;
- what was not added is taken for known with a chance of two in a million over a whole run of eight million
  trajectories (the paper's), n^2 / 2^65.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

FRESH_SHARE, LEAST_FRESH = 1 / 16, 1024
"""Of the sorted fingerprints: when there are so many new ones, they are sorted in. Fewer are kept apart, since each
time costs a copy of all."""


class Fingerprints:
    """A set of trajectories, each an id and the checksum of its payload."""

    def __init__(self, stored: Iterable[tuple[str, int]] = ()) -> None:
        self._sorted = np.unique(np.fromiter((_fingerprint(*each) for each in stored), dtype=np.uint64))
        self._fresh: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._fresh)

    def __contains__(self, stored: tuple[str, int]) -> bool:
        return self._knows(_fingerprint(*stored))

    def add(self, id: str, checksum: int) -> None:
        """Adding twice changes nothing."""
        fingerprint = _fingerprint(id, checksum)
        if self._knows(fingerprint):
            return
        self._fresh.add(fingerprint)
        if len(self._fresh) >= max(LEAST_FRESH, FRESH_SHARE * len(self._sorted)):
            fresh = np.sort(np.fromiter(self._fresh, dtype=np.uint64))
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, fresh), fresh)
            self._fresh = set()

    def _knows(self, fingerprint: int) -> bool:
        if fingerprint in self._fresh:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(fingerprint)))
        return place < len(self._sorted) and int(self._sorted[place]) == fingerprint


def _fingerprint(id: str, checksum: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{checksum} {id}".encode(), digest_size=8).digest(), "little")
