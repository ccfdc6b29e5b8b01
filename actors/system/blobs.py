"""Blobs in the object store that a fabric has.

Invariants:
- a key names its owner, the process that put the blob; others ask the owner for what the store knows it by, which
  never travels as text (the store counts references, and frees what nobody holds);
- a blob ends when its owner drops it, or ends; a reader that has it keeps it for as long as it looks at it.
"""

from __future__ import annotations

from typing import Any

from actors.system.actor import BlobRef
from actors.system.fabric import Fabric, Peers
from actors.system.links import PeerDied, PeerUnreachable
from actors.system.tensors import freeze, thaw


class FabricBlobs:
    """`Blobs` of one process. `peers` is shared with whoever keeps it up to date."""

    def __init__(self, fabric: Fabric, name: str, incarnation: int, peers: Peers) -> None:
        self._fabric = fabric
        self._prefix = f"{name}/{incarnation}"
        self._peers = peers
        self._kept: dict[str, Any] = {}
        self._serial = 0

    async def put(self, value: Any) -> BlobRef:
        self._serial += 1
        key = f"{self._prefix}/{self._serial}"
        self._kept[key] = await self._fabric.keep(freeze(value))
        return BlobRef(key)

    async def get(self, ref: BlobRef) -> Any:
        held = self.held(ref.key)
        if held is None:
            held = await self._ask_owner(ref.key, "resolve")
        if held is None:
            raise KeyError(f"blob {ref.key} was dropped")
        return thaw(await self._fabric.fetch(held[0]))

    async def drop(self, ref: BlobRef) -> None:
        if self._kept.pop(ref.key, None) is None and not ref.key.startswith(f"{self._prefix}/"):
            await self._release_at_owner(ref.key)

    async def _release_at_owner(self, key: str) -> None:
        try:
            await self._ask_owner(key, "release")
        except KeyError:
            return  # it died with its owner

    def held(self, key: str) -> list[Any] | None:
        """What the store knows a blob by, if this process holds it: in a list, since some stores fetch a bare one."""
        return [self._kept[key]] if key in self._kept else None

    def adopt(self, key: str, held: list[Any]) -> None:
        """Hold a blob that another process has put, and answer for it."""
        self._kept[key] = held[0]

    def release(self, key: str) -> None:
        self._kept.pop(key, None)

    async def _ask_owner(self, key: str, method: str) -> Any:
        name, incarnation, _ = key.rsplit("/", 2)
        known, reference = self._peers.get(name, (-1, None))
        if known != int(incarnation):
            raise KeyError(f"blob {key}: its owner is gone")
        try:
            return await self._fabric.call(reference, method, key)
        except (PeerDied, PeerUnreachable) as error:
            raise KeyError(f"blob {key}: its owner is gone") from error
