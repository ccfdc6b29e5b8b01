"""The live process of one session, seen from the host: its start, its cells, its end.

Invariants:
- a cell's deadline is kept here, on the monotonic clock, and counts from when the cell is handed over;
- both streams are read while a cell runs, and kept up to its cap;
- between cells everything in the room is stopped (SIGSTOP): a session that waits costs memory, and no processor;
- a cell that is timed out, floods its output, or ends its process (by running out of memory, for one) leaves none:
  `alive` is false when `run` returns, and nothing of the room is left;
- how the process ended is told by its keeper (`env.session_server`); the kernel says who sent what.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable

from env.jail_link import Link, Said
from env.jail_processes import STARTS_WITHIN_S, is_ending, set_out_of_memory_score
from env.session_room import Room, Rooms, resident_bytes, signal_all
from env.streams import Stream, sealed
from env.tool_call import Limits
from env.verdict import Cause, Ended

_TELLS_WITHIN_S = 0.5
"""After a session's process has ended, its keeper tells how."""
_MOST_NONSENSE = 1000
"""Packets that make no sense (a program wrote to every descriptor it could find) before the session is ended."""


class SessionProcess:
    """`await start(...)` first; then one cell at a time."""

    def __init__(self, limits: Limits, on_end: Callable[[], None]) -> None:
        """Memory, processes and scratch space are limited for the whole session by `limits`; time and output for each
        cell. `on_end` is called when the process has ended between two cells.
        """
        self._limits, self._on_end = limits, on_end
        self._room: Room | None = None
        self._out, self._err = Stream.several(0, 0)
        try:
            self._link = Link(self._hear, lambda _: self._suspect())
        except OSError:
            self._out.close()
            self._err.close()
            raise
        self._keeper = self._worker = 0
        self._worker_pidfd = -1
        self._news: asyncio.Future[None] | None = None
        """Resolved by the next thing that is awaited: `up`, `ready`, the end of a cell, the end of everything."""
        self._token = ""
        self._done: tuple[int, ...] | None = None
        self._wait_status: int | None = None
        self._over = False
        """The process has ended, by itself or by us."""
        self._closed = False
        self._cause: Cause = ""
        self._baseline_kib = self._nonsense = 0
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def alive(self) -> bool:
        return self._room is not None and not self._over

    async def start(self, rooms: Rooms, named: bytes) -> None:
        """Raises `OSError` if the host can't make a room now; then nothing is left of it."""
        try:
            self._room = await rooms.open(self._limits, named, self._link, self._out, self._err)
            async with asyncio.timeout(STARTS_WITHIN_S):
                if not self._keeper:
                    await self._next()
                if not self._over:
                    self._enter()
                    await self._next()
        except TimeoutError:
            said = await self.end()
            raise OSError(f"a session's process was not ready in {STARTS_WITHIN_S:g} s: {said}") from None
        except BaseException:  # cancelled too: it must not stay behind
            await self.end()
            raise
        if not self._worker:
            raise OSError(f"a session's process ended as it started: {await self.end()}")
        self._stop()

    def _enter(self) -> None:
        """The keeper is put under the limits of the session, and goes on from there."""
        assert self._room is not None
        set_out_of_memory_score(self._keeper, 0)
        self._room.admit(self._keeper)
        asyncio.get_running_loop().add_reader(self._room.init_pidfd, self._room_gone)
        self._link.say(b"go")

    async def run(self, code: bytes, number: int, limits: Limits) -> Ended:
        """Run a cell. Raises `OSError` if the process has ended meanwhile, or the host lacks descriptors."""
        assert self._news is None, "one cell at a time"
        if self._room is None or self._over:
            raise OSError("a session's process has ended")
        self._token, self._done, self._cause = str(secrets.randbits(64)), None, ""
        self._room.begin_cell()
        loop = asyncio.get_running_loop()
        for stream in (self._out, self._err):
            stream.restart(limits.output_bytes)
            stream.watch(self._flooded)
        descriptor = sealed("code", code)
        started_ns = time.monotonic_ns()
        self._timers.append(loop.call_later(limits.wall_seconds, self._kill, "timeout"))
        try:
            signal_all(self._room.init, signal.SIGCONT)
            self._link.say(b"cell %d %s" % (number, self._token.encode()), [descriptor])
            await self._next()
        except ConnectionError:
            self._suspect()
            await self._next()
        except asyncio.CancelledError:
            self._kill("aborted")
            raise
        finally:
            os.close(descriptor)
            self._cancel_timers()
            for stream in (self._out, self._err):
                stream.unwatch()
        wall = (time.monotonic_ns() - started_ns) / 1e9
        for stream in (self._out, self._err):
            stream.drain()
        return await self._conclude(wall)

    async def _conclude(self, wall: float) -> Ended:
        assert self._room is not None
        if self._out.truncated or self._err.truncated:
            self._kill("output_limit")
        slot = self._room.slot
        out_of_memory = slot is not None and slot.out_of_memory()
        starved = slot is not None and slot.starved()
        exit_code, cpu_us, largest_kib = self._done or (0, 0, 0)
        peak = slot.peak_bytes() if slot is not None else (largest_kib - self._baseline_kib) * 1024
        log = ""
        if self._over:
            log = await self.end()
        else:
            self._stop()
        return Ended(
            stdout=bytes(self._out.kept),
            stderr=bytes(self._err.kept),
            stdout_truncated=self._out.truncated,
            stderr_truncated=self._err.truncated,
            wait_status=self._wait_status if self._done is None else exit_code << 8,
            cause=self._cause,
            out_of_memory=out_of_memory,
            starved=starved,
            wall_seconds=wall,
            cpu_seconds=cpu_us / 1e6,
            peak_bytes=max(0, peak),
            log=log,
        )

    def abort(self) -> None:
        """End the cell that runs, and the session's process with it."""
        self._kill("aborted")

    async def end(self) -> str:
        """End the process and wait until nothing of it is left; returns what the jail had to say."""
        self._over = True
        if self._closed:
            return ""
        self._closed = True
        self._cancel_timers()
        room, self._room = self._room, None
        if self._worker_pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._worker_pidfd)
            os.close(self._worker_pidfd)
            self._worker_pidfd = -1
        self._link.close()
        try:
            if room is None:
                return ""
            if room.init_pidfd >= 0:
                asyncio.get_running_loop().remove_reader(room.init_pidfd)
            return await room.end()
        finally:
            for stream in (self._out, self._err):
                stream.drain()
                stream.close()

    def memory_bytes(self) -> int:
        """What the session holds now."""
        if self._room is None:
            return 0
        slot = self._room.slot
        return slot.held_bytes() if slot is not None else resident_bytes(self._room.init)

    async def _next(self) -> None:
        if self._over:
            return
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _hear(self, said: Said) -> None:
        for descriptor in said.descriptors:
            os.close(descriptor)  # nobody was asked for any
        if said.word == "up" and not self._keeper:
            self._keeper = said.pid
            self._tell()
        elif said.word == "ready" and self._keeper and not self._worker and len(said.numbers) == 1:
            self._worker, self._baseline_kib = said.pid, said.numbers[0]
            self._watch_worker()
            self._tell()
        elif said.word == "ended" and said.pid == self._keeper and len(said.numbers) == 1:
            if said.numbers[0] != signal.SIGKILL or not self._room_is_ending():
                self._wait_status = said.numbers[0]
            self._lose()
        elif said.word == "done" and self._is_answer(said):
            self._done = said.numbers[1:]
            self._tell()
        else:
            self._nonsense += 1
            if self._nonsense > _MOST_NONSENSE:
                self._wait_status = signal.SIGKILL  # its own doing
                self._lose()

    def _is_answer(self, said: Said) -> bool:
        ours = said.pid == self._worker and len(said.numbers) == 4 and str(said.numbers[0]) == self._token
        return ours and self._done is None and 0 <= said.numbers[1] <= 255

    def _watch_worker(self) -> None:
        try:
            self._worker_pidfd = os.pidfd_open(self._worker)
        except ProcessLookupError:
            self._suspect()
            return
        asyncio.get_running_loop().add_reader(self._worker_pidfd, self._worker_gone)

    def _worker_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._worker_pidfd)
        self._suspect()

    def _suspect(self) -> None:
        """The process seems to have ended: its keeper is about to tell how, or the room is about to be gone."""
        self._timers.append(asyncio.get_running_loop().call_later(_TELLS_WITHIN_S, self._lose_untold))

    def _lose_untold(self) -> None:
        if self._wait_status is None and not self._over and not self._room_is_ending():
            self._wait_status = signal.SIGKILL  # its own doing: the room is there still, and nobody told
            self._lose()

    def _room_is_ending(self) -> bool:
        """Whether others have killed init: then `_room_gone` follows, however long a busy machine takes."""
        return self._room is not None and self._room.init_pidfd >= 0 and is_ending(self._room.init_pidfd)

    def _room_gone(self) -> None:
        """Init has ended and it was not us: others killed the room, or memory ran out."""
        if self._room is not None:
            asyncio.get_running_loop().remove_reader(self._room.init_pidfd)
        self._lose()

    def _lose(self) -> None:
        if self._over:
            return
        self._over = True
        if self._room is not None:
            self._room.kill()
        if self._news is not None:
            self._tell()
        else:
            self._on_end()

    def _flooded(self) -> None:
        self._kill("output_limit")

    def _kill(self, cause: Cause) -> None:
        """End everything of the session. The first cause is the one that counts."""
        if not self._over:
            self._cause = self._cause or cause
            self._lose()

    def _stop(self) -> None:
        assert self._room is not None
        signal_all(self._room.init, signal.SIGSTOP)

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
