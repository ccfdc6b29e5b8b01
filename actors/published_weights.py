"""The weights that a learner has put into the object store.

Invariant: each asker has one blob at most. It drops that when it has the weights; what it did not drop, since it died
or lost its way before, goes when it asks again.
"""

from __future__ import annotations

from typing import Any

from actors.system.actor import BlobRef, Blobs


class PublishedWeights:
    """By asker, the blob that it was given last."""

    def __init__(self) -> None:
        self._latest: dict[str, BlobRef] = {}

    async def put(self, blobs: Blobs, asker: str, weights: Any) -> BlobRef:
        """A blob of `weights` for `asker`."""
        ref = await blobs.put(weights)
        before = self._latest.get(asker)
        self._latest[asker] = ref
        if before is not None:
            await blobs.drop(before)
        return ref
