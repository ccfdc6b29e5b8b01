"""The object that a process is reached by when it hosts an actor: the stage's calls, and the peers' frames.

Invariant: its methods don't raise, but for frames that a drill drops. What goes wrong with the actor is told as text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors.system.blobs import FabricBlobs
from actors.system.carried_folder import CarriedFolder, FolderNotCarried, unpacked
from actors.system.fabric import Fabric, Peers
from actors.system.frame_faults import FrameFaultKind, FrameFaults
from actors.system.host import ActorHost, HostSpec
from actors.system.process import become_host

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 0.2
"""Between saying why the actor ends and ending it."""
_EXIT_CODE = 70


class HostProcess:
    """Made once per process, by the fabric; then `construct`, `introduce`, `start`, messages, `stop`."""

    def __init__(self, spec: HostSpec, fabric: Fabric) -> None:
        become_host(spec)
        self._spec = spec
        self._fabric = fabric
        self._peers: Peers = {}
        self._blobs = FabricBlobs(fabric, spec.name, spec.incarnation, self._peers)
        self._made: ActorHost | None = None
        self._last_words: asyncio.Future[str] | None = None
        self._frame_faults = FrameFaults()

    @property
    def _host(self) -> ActorHost:
        assert self._made is not None, "construct() comes first"
        return self._made

    async def construct(self) -> tuple[int, str]:
        """Make the actor. Returns the pid, and why that failed, if it did."""
        self._last_words = asyncio.get_running_loop().create_future()
        self._made = ActorHost(self._spec, self._blobs, self._fabric.unpickle, self._die)
        try:
            folders = {name: str(await self._reach(folder)) for name, folder in self._spec.carried.items()}
        except (FolderNotCarried, KeyError) as error:
            return os.getpid(), str(error)
        return os.getpid(), self._made.construct(folders)

    async def _reach(self, folder: CarriedFolder) -> Path:
        """Where a folder of the driver's is on this node. Raises `FolderNotCarried`, `KeyError` if it is lost."""
        if folder.home == self._fabric.node():
            return Path(folder.path)
        return await unpacked(folder.digest, self._pieces(folder))

    async def _pieces(self, folder: CarriedFolder) -> AsyncIterator[bytes]:
        for piece in folder.pieces:
            yield await self._fabric.fetch(piece)

    async def introduce(self, peers: Peers) -> None:
        """Make peers known, or their next incarnations."""
        for name, (incarnation, reference) in peers.items():
            if self._peers.get(name, (-1, None))[0] < incarnation:
                self._peers[name] = incarnation, reference
                self._host.mailbox.introduce(name, incarnation, self._fabric.wire(reference))

    async def start(self) -> str:
        """Start the actor. Returns why that failed, if it did."""
        return await self._host.start()

    async def ping(self) -> None:
        """Answered by whoever's loop turns."""

    async def frame(self, frame: bytes) -> bytes:
        return await self._frame_faults.pass_on(frame, self._host.mailbox.inbox.frame)

    async def disturb(self, kind: FrameFaultKind, frames: int, seconds: float) -> None:
        """For drills: see `FrameFaults.hit`."""
        await self._frame_faults.hit(kind, frames, seconds)

    async def poll(self, sender: str, incarnation: int, seen: int) -> bytes:
        return await self._host.mailbox.inbox.poll(sender, incarnation, seen)

    async def epitaph(self) -> str:
        """Waits until the actor fails of itself; returns why."""
        assert self._last_words is not None, "construct() comes first"
        return await asyncio.shield(self._last_words)

    async def stop(self) -> None:
        if self._made is not None:
            await self._made.stop()

    async def resolve(self, key: str) -> list[Any] | None:
        return self._blobs.held(key)

    async def release(self, key: str) -> None:
        self._blobs.release(key)

    async def adopt(self, key: str, held: list[Any]) -> None:
        self._blobs.adopt(key, held)

    def _die(self, error: BaseException) -> None:
        """A task of the actor failed: say so where it is heard, and end the process."""
        text = "".join(traceback.format_exception(error))
        logger.critical("%s ends: a task of it failed\n%s", self._spec.name, text)
        if self._last_words is not None and not self._last_words.done():
            self._last_words.set_result(f"a task of it failed\n{text}")
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, _EXIT_CODE)
