"""Rooms of sessions in one long-lived jail: forked by its zygotes, with libraries in memory that they share.

Invariants:
- the jail's rooms are made one after the other, and live side by side, each with a user and a cgroup of its own;
- when the jail ends, all of its rooms do, and each tells its own session;
- the jail is replaced after `recycle_after` sessions, at a moment when there is none.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Sequence

from env import cgroup_hierarchy, cgroups
from env.image import Image
from env.jail_link import Link, Said
from env.jail_processes import ENDS_WITHIN_S, STARTS_WITHIN_S, ended, pid_of, send
from env.session_room import KEEPER, Room, server_program
from env.streams import Stream, sealed
from env.tool_call import Limits
from env.user_ids import BLOCKS
from env.zygote_call import lacks_protection
from env.zygote_jail import JailFailed, Zygote, ZygoteJail
from env.zygotes import Zygotes


class _ZygoteRoom:
    """See `env.session_room.Room`."""

    def __init__(
        self,
        rooms: ZygoteRooms,
        jail: ZygoteJail,
        pidfd: int,
        user: int,
        slot: cgroups.Slot | None,
        limits: Limits,
    ) -> None:
        self._rooms, self._jail, self.init_pidfd, self._limits = rooms, jail, pidfd, limits
        self.user, self.slot = user, slot
        self.gone = asyncio.Event()
        self._words = ""
        self.begin_cell()
        self.init = self.pid()

    def pid(self) -> int:
        """Of init; -1 when the warden has reaped it, and nothing of the room is left."""
        return pid_of(self.init_pidfd)

    def admit(self, pid: int) -> None:
        if self.slot is not None:
            self.slot.move_in(pid)

    def lose_jail(self) -> None:
        """The whole jail has ended; who comes later finds its log closed."""
        if not self.gone.is_set():
            self._words = self._jail.words()
            self.gone.set()

    def begin_cell(self) -> None:
        if self.slot is not None:
            self.slot.prepare(self._limits, our_processes=KEEPER)

    def kill(self) -> None:
        send(self.init_pidfd, signal.SIGKILL)

    async def end(self) -> str:
        self.kill()
        slow = asyncio.get_running_loop().call_later(ENDS_WITHIN_S, self._jail.kill)
        try:
            if not self._jail.lost:
                await self.gone.wait()
            await ended(self.init_pidfd)
        finally:
            slow.cancel()
            os.close(self.init_pidfd)
            self._rooms.take_back(self)
        return self._words


class ZygoteRooms:
    """See `env.session_room.Rooms`."""

    def __init__(self, image: Image, run_id: str, libraries: Sequence[str], recycle_after: int) -> None:
        """`libraries` as in `env.zygotes.Zygotes`. Raises `OSError` if the root can't be staged or cgroups be made."""
        self._recycle_after = recycle_after
        self._zygotes = Zygotes(image, 1, run_id, libraries, recycle_after=sys.maxsize, first_block=BLOCKS - 1)
        self._hierarchy, self._run_id = cgroup_hierarchy.find_hierarchy(), run_id
        self._slots: list[cgroups.Slot] = []
        """Made and not in use."""
        self._slot_numbers = itertools.count()
        self._made = 0
        self._turn = asyncio.Lock()
        self._open: set[_ZygoteRoom] = set()
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        """What the jail has said; None: it has ended."""
        self._last_user = 0

    async def open(self, limits: Limits, named: bytes, link: Link, out: Stream, err: Stream) -> Room:
        async with self._turn:
            try:
                jail, zygote = await self._jail_for(named)
                jail.tenant = self
                self._said = asyncio.Queue()
                try:
                    async with asyncio.timeout(STARTS_WITHIN_S):
                        return await self._make(jail, zygote, limits, link, out, err)
                except TimeoutError:
                    jail.kill()  # what it says late would be taken for news of the next room
                    raise JailFailed(f"a room was not made in {STARTS_WITHIN_S:g} s: {jail.words()}") from None
            finally:
                for stream in (out, err):
                    stream.close_writer()
                link.theirs.close()

    async def _jail_for(self, named: bytes) -> tuple[ZygoteJail, Zygote]:
        if self._made >= self._recycle_after and not self._open:
            await self._zygotes.end_all()
            self._made = 0
        return await self._zygotes.ready(0, named)

    async def _make(
        self, jail: ZygoteJail, zygote: Zygote, limits: Limits, link: Link, out: Stream, err: Stream
    ) -> Room:
        self._made += 1
        jail.ask_for_room(limits)
        (pidfd,) = (await self._hear(jail, "room")).descriptors
        slot: cgroups.Slot | None = None
        try:
            slot = self._free_slot()
            room = _ZygoteRoom(self, jail, pidfd, self._free_user(jail), slot, limits)
        except OSError:
            os.close(pidfd)
            jail.kill()
            if slot is not None:
                self._slots.append(slot)
            raise
        self._open.add(room)
        try:
            await self._start_program(jail, zygote, room, pidfd, limits, link, out, err)
        except BaseException:  # cancelled too: it must not stay behind
            jail.kill()  # who knows what it is doing
            await room.end()
            raise
        return room

    async def _start_program(
        self,
        jail: ZygoteJail,
        zygote: Zygote,
        room: _ZygoteRoom,
        pidfd: int,
        limits: Limits,
        link: Link,
        out: Stream,
        err: Stream,
    ) -> None:
        code = sealed("code", server_program(detach=True))
        try:
            descriptors = [pidfd, code, out.writer, err.writer, link.theirs.fileno()]
            jail.ask_for_program(zygote, room.user, limits, descriptors, our_processes=1 + KEEPER)
        finally:
            os.close(code)
        problem = lacks_protection(await self._hear(jail, "started"), room.user, jail.ids.outside)
        if problem:
            raise JailFailed(problem)
        await self._hear(jail, "ended")  # the program has left the session's processes to the room

    def _free_slot(self) -> cgroups.Slot | None:
        if self._hierarchy is None:
            return None
        if not self._slots:
            name = f"{id(self):x}-session-{next(self._slot_numbers)}"
            self._slots.append(cgroups.Slot(self._hierarchy, self._run_id, name))
        return self._slots.pop()

    def _free_user(self, jail: ZygoteJail) -> int:
        """One that no room of the jail has; 0 where there is but one. Raises `JailFailed` if all are taken."""
        count = jail.ids.count - 1
        if not count:
            return 0
        taken = {room.user for room in self._open}
        for offset in range(count):
            user = 1 + (self._last_user + offset) % count
            if user not in taken:
                self._last_user = user
                return user
        raise JailFailed(f"all {count} users of the sessions' jail are taken")

    async def _hear(self, jail: ZygoteJail, word: str) -> Said:
        said = await self._said.get()
        if said is None:
            raise JailFailed(f"the jail ended: {jail.words()}")
        if said.word != word:
            jail.kill()
            raise JailFailed(f"the jail said {said.word!r} {said.text} instead of {word!r}")
        return said

    def hear(self, said: Said) -> None:
        """What the jail says: of the room that is being made, or that one of them is gone."""
        if said.word != "gone":
            self._said.put_nowait(said)
            return
        for room in self._open:
            if room.pid() < 0:
                room.gone.set()

    def lose_jail(self) -> None:
        self._said.put_nowait(None)
        for room in self._open:
            room.lose_jail()

    def take_back(self, room: _ZygoteRoom) -> None:
        """A room has ended."""
        self._open.discard(room)
        if room.slot is not None:
            self._slots.append(room.slot)

    async def close(self) -> None:
        await self._zygotes.end_all()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for slot in self._slots:
            slot.close()
        self._zygotes.close()
