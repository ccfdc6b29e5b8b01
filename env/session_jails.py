"""Rooms of sessions that are jails of their own, each with a fresh interpreter: slow, simple, and the oracle.

Invariants: as of a call's jail (`env.jailed_process`), but that it lives until it is told to end.
"""

from __future__ import annotations

import asyncio
import os
import signal

from env import cgroup_hierarchy, cgroups, jail, runner
from env.image import Image
from env.jail_link import Link
from env.jail_processes import children_of, ended, hurry_nsjail, kill, reap, send
from env.jailed_process import runner_descriptor
from env.launch import Lane, Nsjail
from env.session_room import KEEPER, Room, server_program
from env.staging import Staging
from env.streams import Stream, sealed
from env.tool_call import Limits

_LOG_BYTES = 8 << 10


class _JailRoom:
    """See `env.session_room.Room`."""

    def __init__(self, rooms: JailRooms, lane: Lane, limits: Limits) -> None:
        self._rooms, self._lane, self._limits = rooms, lane, limits
        self.slot = lane.cgroup
        self.init, self.init_pidfd = 0, -1
        self._log = Stream(_LOG_BYTES)
        self._pid, self._pidfd = 0, -1
        self._control, self._control_writer = os.pipe()
        """While our end is open, the jail's init lives."""

    async def start(self, link: Link, out: Stream, err: Stream) -> None:
        code = sealed("code", server_program(detach=False))
        config = sealed("config", self._rooms.config(self._limits).encode())
        status = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)  # of the program: the session tells by itself
        theirs = {
            0: link.theirs.fileno(),
            1: self._log.writer,
            2: self._log.writer,
            jail.CODE: code,
            jail.STATUS: status,
            jail.CONTROL: self._control,
            jail.STDOUT: out.writer,
            jail.STDERR: err.writer,
            jail.RUNNER: runner_descriptor(),
            jail.CONFIG: config,
        }
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._lane.executor, self._launch, theirs)
        finally:
            for descriptor in (code, config, status):
                os.close(descriptor)

    def _launch(self, theirs: dict[int, int]) -> None:
        """Runs in the lane's thread."""
        self.begin_cell()
        self._pid, self._pidfd = self._lane.launch(self._rooms.nsjail.path, theirs)
        os.write(self._control_writer, runner.STAY)

    def admit(self, pid: int) -> None:
        """It was started under the room's limits. That it talks means that init is there. Raises `OSError`."""
        self.init = next(iter(children_of(self._pid)), 0)
        if not self.init:
            raise ProcessLookupError("the jail ended as it started")
        self.init_pidfd = os.pidfd_open(self.init)

    def begin_cell(self) -> None:
        if self.slot is not None:
            self.slot.prepare(self._limits, our_processes=cgroups.OUR_PROCESSES + KEEPER)

    def kill(self) -> None:
        if self.init_pidfd >= 0:
            send(self.init_pidfd, signal.SIGKILL)
            return
        for child in children_of(self._pid) if self._pid else ():
            kill(child)

    async def end(self) -> str:
        try:
            if self._pid:
                await self._end_nsjail()
            self._log.drain()
            return bytes(self._log.kept).decode("utf-8", "replace")
        finally:
            self._log.close()
            for descriptor in (self._control, self._control_writer, self._pidfd, self.init_pidfd):
                if descriptor >= 0:
                    os.close(descriptor)
            self._rooms.take_back(self._lane)

    async def _end_nsjail(self) -> None:
        self.kill()
        timers = hurry_nsjail(self._pidfd)
        try:
            await ended(self._pidfd)
            if self.init_pidfd >= 0:  # longer than nsjail, if somebody killed that
                await ended(self.init_pidfd)
        finally:
            for timer in timers:
                timer.cancel()
            reap(self._pid)


class JailRooms:
    """See `env.session_room.Rooms`."""

    def __init__(self, image: Image, run_id: str) -> None:
        """Raises `OSError` if the root can't be staged or cgroups can't be made."""
        self._image, self._run_id = image, run_id
        self._staging = Staging(image)
        self.nsjail = Nsjail()
        self._hierarchy = cgroup_hierarchy.find_hierarchy()
        self._lanes: list[Lane] = []
        """Made and not in use."""
        self._made = 0

    def config(self, limits: Limits) -> str:
        staged, cgroup = self._staging.staged_root, self._hierarchy is not None
        mine = limits.model_copy(update={"processes": limits.processes + KEEPER})
        return jail.jail_config(self._image, mine, staged_root=staged, cgroup=cgroup)

    async def open(self, limits: Limits, named: bytes, link: Link, out: Stream, err: Stream) -> Room:
        try:
            lane = self._lane()
            try:
                room = _JailRoom(self, lane, limits)
            except OSError:
                self.take_back(lane)
                raise
            try:
                await room.start(link, out, err)
            except BaseException:  # cancelled too: a half-started jail must not stay behind
                await room.end()
                raise
            return room
        finally:
            for stream in (out, err):
                stream.close_writer()
            link.theirs.close()

    def _lane(self) -> Lane:
        if not self._lanes:
            self._made += 1
            name = f"{id(self):x}-session-{self._made}"
            slot = cgroups.Slot(self._hierarchy, self._run_id, name) if self._hierarchy else None
            self._lanes.append(Lane(self._staging, slot, f"greenroom-session-{self._made}"))
        return self._lanes.pop()

    def take_back(self, lane: Lane) -> None:
        """A room has ended."""
        self._lanes.append(lane)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self.nsjail.close()
        self._staging.close()
