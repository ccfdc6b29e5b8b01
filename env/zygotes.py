"""Each worker has a long-lived jail of zygotes; each call a room of its own in it.

Invariants:
- a jail has one call at a time, and is replaced after `recycle_after` calls (the layout of its memory is the same for
  all of its programs, and whatever the kernel keeps for it should not pile up), or when it misbehaves;
- a jail starts when its worker's first call comes, and grows to the libraries that calls name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack

from env import cgroup_hierarchy, cgroups, preload
from env.image import Image
from env.isolation import NO_CGROUP, ONE_USER, Running, say_once
from env.jail import zygote_jail_config
from env.launch import Lane, Nsjail
from env.staging import Staging
from env.streams import sealed
from env.tool_call import Limits, ToolCall, ToolResult
from env.user_ids import UserIds, block_for
from env.verdict import verdict
from env.zygote_call import Confirmed, ZygoteCall
from env.zygote_jail import LibraryMissing, Zygote, ZygoteJail

logger = logging.getLogger(__name__)

RECYCLE_AFTER = 2000
MOST_ZYGOTES = 16
"""Of one jail. Further sets of libraries import what they lack."""
JAIL_BYTES = 24 << 20
"""Memory of a jail with the zygote that has no library."""
LIBRARY_BYTES = 48 << 20
"""What a zygote has for itself when it has imported one library more than the one that it was forked from, about (seen:
4 MiB for numpy, 43 for sympy, 55 for scipy, 41 to 71 for pandas)."""


def most_memory_bytes(libraries: Sequence[str]) -> int:
    """What the zygotes of one worker may take when calls have named all that they can of `libraries`."""
    return JAIL_BYTES + (min(MOST_ZYGOTES, 2 ** len(libraries)) - 1) * LIBRARY_BYTES


class _Worker:
    """What one worker keeps from call to call."""

    def __init__(self, config: int, slot: cgroups.Slot | None, ids: UserIds) -> None:
        self.config, self.slot, self.ids = config, slot, ids
        self.jail: ZygoteJail | None = None


class Zygotes:
    """Programs forked by interpreters that have imported what they need."""

    def __init__(
        self,
        image: Image,
        workers: int,
        run_id: str,
        libraries: Sequence[str] = preload.LIBRARIES,
        recycle_after: int = RECYCLE_AFTER,
        first_block: int = 0,
    ) -> None:
        """`libraries` in the order in which zygotes add them; those that the image lacks are left out. Workers have
        blocks of users (`env.user_ids`) from `first_block` on.

        Raises `OSError` if the root can't be staged or cgroups can't be made.
        """
        self._libraries = [name for name in libraries if image.libraries and (image.libraries / name).exists()]
        self._recycle_after = recycle_after
        self.confirmed = Confirmed()
        with ExitStack() as undo:
            self._staging = Staging(image)
            undo.callback(self._staging.close)
            self._nsjail = Nsjail()
            undo.callback(self._nsjail.close)
            hierarchy = cgroup_hierarchy.find_hierarchy()
            if hierarchy is not None:
                cgroups.sweep(hierarchy)
            name = f"{id(self):x}"
            nursery = cgroups.Slot(hierarchy, run_id, f"{name}-zygotes") if hierarchy else None
            self._lane = Lane(self._staging, nursery, "greenroom-zygotes")
            undo.callback(self._lane.close)
            self._workers: list[_Worker] = []
            for number in range(workers):
                ids = block_for(first_block + number)
                text = zygote_jail_config(
                    image, ids, staged_root=self._staging.staged_root, cgroup=hierarchy is not None
                )
                config = sealed("config", text.encode())
                undo.callback(os.close, config)
                slot = cgroups.Slot(hierarchy, run_id, f"{name}-{number}") if hierarchy else None
                if slot is not None:
                    undo.callback(slot.close)
                self._workers.append(_Worker(config, slot, ids))
            self._undo = undo.pop_all()
        alone = self._workers[0].ids.count == 1
        self.weaknesses: tuple[str, ...] = (
            *((NO_CGROUP + cgroup_hierarchy.obstacle(),) if hierarchy is None else ()),
            *((ONE_USER,) if alone else ()),
        )
        say_once(self.weaknesses)

    async def run(self, call: ToolCall, limits: Limits, worker: int, running: Running) -> ToolResult:
        code = call.code.encode("utf-8", "surrogatepass")
        place = self._workers[worker]
        try:
            jail, zygote = await self.ready(worker, code)
            process = ZygoteCall(
                jail, zygote, code, call.input.encode("utf-8", "surrogatepass"), limits, place.slot, self.confirmed
            )
            running.ends_by(process.abort)
            return verdict(call, limits, await process.run())
        finally:
            if place.jail is not None and place.jail.lost:
                place.jail, lost = None, place.jail
                await lost.end()

    async def ready(self, worker: int, code: bytes) -> tuple[ZygoteJail, Zygote]:
        """A worker's jail, grown to what the code names, and the zygote that has it. Raises `OSError`."""
        place = self._workers[worker]
        if place.jail is not None and (place.jail.lost or place.jail.calls >= self._recycle_after):
            place.jail, old = None, place.jail
            await old.end()
        if place.jail is None:
            jail = ZygoteJail(self._nsjail, place.config, self._lane, place.slot, place.ids)
            await jail.start()
            place.jail = jail
        zygotes = place.jail.zygotes
        while (libraries := preload.named_in(code, self._libraries)) not in zygotes:
            count = next(count for count in range(1, len(libraries) + 1) if libraries[:count] not in zygotes)
            if len(zygotes) >= MOST_ZYGOTES:
                libraries = libraries[: count - 1]
                break
            try:
                await place.jail.grow(libraries[:count])
            except LibraryMissing as error:
                library = libraries[count - 1]
                logger.warning("zygotes do without %s, which can't be imported: %s", library, error)
                if library in self._libraries:  # another worker may have found out as well
                    self._libraries.remove(library)
        return place.jail, zygotes[libraries]

    async def end_all(self) -> None:
        for place in self._workers:
            if place.jail is not None:
                place.jail, jail = None, place.jail
                await jail.end()

    def close(self) -> None:
        self._undo.close()
