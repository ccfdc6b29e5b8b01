"""One long-lived jail of zygotes, seen from the host: its start, its links, its growth, its end.

Invariants:
- one call at a time; what the jail says goes to that call;
- a link that closes, or says what it should not, means that the jail has misbehaved: it is ended, and its call is told;
- zygotes import outside the cgroup of calls and are moved into it afterwards: libraries are not on a call's bill.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from env import cgroups, jail, zygote
from env.huge_pages import use_huge_pages
from env.jail_link import Link, Said
from env.jail_processes import STARTS_WITHIN_S, hurry_nsjail, reap, send, set_out_of_memory_score
from env.launch import Lane, Nsjail
from env.streams import Stream
from env.tool_call import Limits
from env.user_ids import UserIds
from env.zygote_bundle import bundle, nothing

logger = logging.getLogger(__name__)

_LOG_BYTES = 8 << 10
_MOST_WORDS = 300
"""Characters that go into messages of what nsjail says of its errors, and of what others say."""
_PROTECTED = -900
"""oom_score_adj of warden and zygotes: a call that is out of memory must not cost the next ones their zygote."""


class JailFailed(OSError):
    """A jail could not be started or has ended; the text has its own words."""


class LibraryMissing(ImportError):
    """A zygote could not import a library."""


class Tenant(Protocol):
    """The call that has a jail to itself."""

    def hear(self, said: Said) -> None: ...

    def lose_jail(self) -> None:
        """The jail has ended, and with it everything of this call."""
        ...


@dataclass
class Zygote:
    """A fork server of the jail, ready to fork."""

    link: Link
    pid: int
    address_space: int
    """Bytes of address space that it has, and a program inherits."""
    data: int
    """Bytes of those that are writable and its own."""


class ZygoteJail:
    """A jail with its zygotes. `await start()` first."""

    def __init__(self, nsjail: Nsjail, config: int, lane: Lane, slot: cgroups.Slot | None, ids: UserIds) -> None:
        """`lane` launches it, in the cgroup in which zygotes import; `slot` is the cgroup of its calls."""
        self._nsjail, self._config, self._lane, self._slot = nsjail, config, lane, slot
        self.ids = ids
        self.tenant: Tenant | None = None
        self.lost = False
        """Whether it has ended, or misbehaved and is being ended."""
        self.calls = 0
        self.zygotes: dict[tuple[str, ...], Zygote] = {}
        """By the libraries that they have, in the order in which they imported them."""
        self.log = Stream(_LOG_BYTES)
        self._warden: Link | None = None
        self._warden_pidfd = -1
        self._pid = 0
        self._pidfd = -1
        self._links: list[Link] = []
        self._growing: asyncio.Future[None] | None = None
        self._born = 0
        self._watched: list[int] = []
        """Pidfds of zygotes."""
        self._ended = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    async def start(self) -> None:
        """Raises `JailFailed`, or another `OSError` if the host lacks descriptors or processes."""
        try:
            warden = self._warden = self._new_link(self._hear_warden)
            first = self._new_link(self._hear_newborn)
            theirs = {
                0: nothing(),
                1: self.log.writer,
                2: self.log.writer,
                zygote.WARDEN_LINK: warden.theirs.fileno(),
                zygote.ZYGOTE_LINK: first.theirs.fileno(),
                zygote.BUNDLE: bundle(),
                jail.CONFIG: self._config,
            }
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._lane.executor, self._launch, theirs)
            warden.theirs.close()
            self.log.close_writer()
            loop.add_reader(self._pidfd, self._on_exit)
            await self._birth(first, ())
        except LibraryMissing as error:
            await self.end()
            raise JailFailed(f"the zygote can't import what every program may: {error}") from error
        except BaseException:  # cancelled too: a half-started jail must not stay behind
            await self.end()
            raise

    def _launch(self, theirs: dict[int, int]) -> None:
        self._pid, self._pidfd = self._lane.launch(self._nsjail.path, theirs)

    async def grow(self, libraries: tuple[str, ...]) -> None:
        """Fork the zygote that has all but the last of `libraries`, and let the new one import that too.

        Raises `LibraryMissing` if it can't be imported; `JailFailed` if the jail ends or does not answer in time.
        """
        link = self._new_link(self._hear_newborn)
        *had, library = libraries
        self.zygotes[tuple(had)].link.say(b"grow %s" % library.encode(), [link.theirs.fileno()])
        await self._birth(link, libraries)

    def _new_link(self, hear: Callable[[Said], None]) -> Link:
        link = Link(hear, self._lose)
        self._links.append(link)
        return link

    async def _birth(self, link: Link, libraries: tuple[str, ...]) -> None:
        """Wait until the zygote behind a link has imported, and take it into service."""
        link.theirs.close()
        self._growing = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                await self._growing  # `up`: it has been moved to where zygotes import
                link.say(b"go")
                self._growing = asyncio.get_running_loop().create_future()
                await self._growing  # `ready`
        except LibraryMissing:
            self._links.remove(link)
            link.close()
            self._unwatch(self._watched.pop())
            raise
        except TimeoutError:
            self._lose("a zygote was not ready in time")
            raise JailFailed(f"a zygote was not ready in {STARTS_WITHIN_S:g} s: {self.words()}") from None
        finally:
            self._growing = None
        pid = self._born
        await asyncio.get_running_loop().run_in_executor(self._lane.executor, use_huge_pages, pid)
        if self._slot is not None:
            self._slot.move_in(pid)
        self.zygotes[libraries] = Zygote(link, pid, *_memory(pid))
        link.turn_to(self._hear_zygote)

    def _hear_warden(self, said: Said) -> None:
        if self._warden_pidfd < 0:  # it says `up` first: then it can be ended directly
            self._warden_pidfd = os.pidfd_open(said.pid)
            _protect(said.pid)
        elif self.tenant is not None:
            self.tenant.hear(said)

    def _hear_newborn(self, said: Said) -> None:
        growing = self._growing
        if growing is None or growing.done():
            return
        if said.word == "up":
            _protect(said.pid)
            self._watch(said.pid)
            if self._lane.cgroup is not None:
                self._lane.cgroup.move_in(said.pid)
            growing.set_result(None)
        elif said.word == "ready":
            self._born = said.pid
            growing.set_result(None)
        else:
            growing.set_exception(LibraryMissing(said.text))

    def _watch(self, pid: int) -> None:
        """Notice the death of a zygote: the first one's link stays open in nsjail, which has a copy."""
        handle = os.pidfd_open(pid)
        self._watched.append(handle)
        asyncio.get_running_loop().add_reader(handle, self._lose_zygote, handle)

    def _unwatch(self, handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)

    def _lose_zygote(self, handle: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(handle)
        loop.call_soon(self._lose_after_last_words, self._growing)  # which may be read in this turn of the loop

    def _lose_after_last_words(self, growing: asyncio.Future[None] | None) -> None:
        """A zygote has ended. One that can't import its library says so before; one that was killed does not."""
        said_why = growing is not None and growing.done() and (growing.cancelled() or growing.exception() is not None)
        if not said_why:
            self._lose("a zygote has ended")

    def _hear_zygote(self, said: Said) -> None:
        if self.tenant is not None:
            self.tenant.hear(said)

    def ask_for_room(self, limits: Limits) -> None:
        """The tenant hears `room` with a pidfd of its init. Raises `JailFailed`."""
        assert self._warden is not None, "the jail has been started"
        self._say(self._warden, b"room %d %d" % (limits.scratch_bytes, jail.inodes(limits)))

    def ask_for_program(
        self, zygote: Zygote, user: int, limits: Limits, descriptors: Sequence[int], our_processes: int = 0
    ) -> None:
        """The tenant hears `started` and `ended`, or `failed`. Raises `JailFailed`.

        `descriptors`: pidfd of the room's init, code, stdout, stderr, and stdin if any. The user may have
        `our_processes` more than the limits allow.
        """
        has_cgroup = self._slot is not None
        address_space = jail.address_space_bytes(limits, has_cgroup) + zygote.address_space
        processes = 0 if has_cgroup else limits.processes + our_processes
        data = 0 if has_cgroup else jail.data_bytes(limits) + zygote.data
        request = b"run %d %d %d %d %d" % (user, address_space, data, jail.file_size_bytes(limits), processes)
        self._say(zygote.link, request, descriptors)

    def _say(self, link: Link, message: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            link.say(message, descriptors)
        except OSError as error:
            self._lose(str(error))
            raise JailFailed(f"the jail does not take messages: {error}") from error

    def _lose(self, why: str) -> None:
        """End a jail that misbehaved. Its tenant hears of it when nothing is left."""
        if not self.lost:
            logger.info("a jail of zygotes is given up: %s", why)
            self.kill()

    def kill(self) -> None:
        """End everything in the jail; `ended` tells when that is so."""
        self.lost = True
        if self._growing is not None and not self._growing.done():
            self._growing.set_exception(JailFailed(f"the jail ended: {self.words()}"))
        if self._ended.is_set() or self._pidfd < 0:
            return
        # the warden is process 1 of the jail: the kernel ends all others with it
        send(self._warden_pidfd if self._warden_pidfd >= 0 else self._pidfd, signal.SIGKILL)
        self._timers += hurry_nsjail(self._pidfd)

    def _on_exit(self) -> None:
        """nsjail has ended. If somebody killed it, what is in the jail may still be there."""
        if self._pidfd < 0:
            return  # closed by one who came first in this turn of the loop
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.kill()
        self._reap()
        if self._warden_pidfd >= 0:
            asyncio.get_running_loop().add_reader(self._warden_pidfd, self._on_warden_exit)
        else:
            self._conclude()

    def _on_warden_exit(self) -> None:
        if self._warden_pidfd < 0:
            return
        asyncio.get_running_loop().remove_reader(self._warden_pidfd)
        self._conclude()

    def _conclude(self) -> None:
        self._ended.set()
        if self.tenant is not None:
            self.tenant.lose_jail()

    def _reap(self) -> None:
        if self._pid:
            reap(self._pid)
            self._pid = 0

    async def end(self) -> None:
        """End the jail if it has not ended, wait until nothing is left of it, and close what belongs to it."""
        self.kill()
        if self._pidfd >= 0 and not self._ended.is_set():
            loop = asyncio.get_running_loop()  # perhaps another one than at the start
            loop.add_reader(self._pidfd, self._on_exit)
            await self._ended.wait()
        self._close()

    def end_now(self) -> None:
        """As `end`, without an event loop that goes on: blocks for some milliseconds."""
        self.lost = True
        if self._pid:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pidfd)
            for descriptor in (self._warden_pidfd, self._pidfd):
                if descriptor >= 0:
                    send(descriptor, signal.SIGKILL)
            self._reap()
        self._ended.set()
        self._close()

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for link in self._links:
            link.close()
        for handle in self._watched:
            self._unwatch(handle)
        self._watched.clear()
        self.log.close()
        for descriptor in (self._pidfd, self._warden_pidfd):
            if descriptor >= 0:
                asyncio.get_running_loop().remove_reader(descriptor)
                os.close(descriptor)
        self._pidfd = self._warden_pidfd = -1
        self._links.clear()
        self._timers.clear()

    def words(self) -> str:
        """What nsjail and the jail's processes have said since this was last asked.

        Of nsjail's log its errors and warnings, which begin with the cause; of an interpreter's words the end,
        which has it.
        """
        self.log.drain()
        text = bytes(self.log.kept).decode("utf-8", "replace")
        self.log.kept.clear()
        self.log.truncated = False
        lines = [line for line in text.splitlines() if "no version information available" not in line]
        errors = " ".join(line for line in lines if line.startswith(("[E]", "[W]")) and "logParams()" not in line)
        others = " ".join(line for line in lines if not line.startswith("["))
        last = others if len(others) <= _MOST_WORDS else f"... {others[-_MOST_WORDS:]}"
        return f"{errors[:_MOST_WORDS]} {last}".strip()


def _memory(pid: int) -> tuple[int, int]:
    """Address space, and data with the stack; bytes, from proc_pid_statm(5)."""
    size, *_, data, _ = Path(f"/proc/{pid}/statm").read_text().split()
    return int(size) * os.sysconf("SC_PAGE_SIZE"), int(data) * os.sysconf("SC_PAGE_SIZE")


def _protect(pid: int) -> None:
    set_out_of_memory_score(pid, _PROTECTED)
