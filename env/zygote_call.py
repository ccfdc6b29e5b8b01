"""One call in a jail of zygotes: make it a room, start its program there, watch it, end it, say what came of it.

Invariants:
- the deadline is kept here, on the monotonic clock, and counts from the start of the user's program;
- a program of which the kernel does not say that it has its own user, no rights and its filter, is ended at once;
- both streams are read as they come and kept up to their cap;
- `run` returns when nothing of the call is left, whatever happened; `abort` makes that happen at once;
- a jail that does not do its part in time is ended, and the call with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from env import cgroups
from env.jail_link import Said
from env.jail_processes import ENDS_WITHIN_S, STARTS_WITHIN_S, is_ending, send, set_out_of_memory_score
from env.streams import Stream, sealed
from env.tool_call import Limits
from env.verdict import Cause, Ended, settled
from env.zygote_jail import Zygote, ZygoteJail

_FILTERED = 2
"""SECCOMP_MODE_FILTER."""


@dataclass
class Confirmed:
    """For how many calls each protection was seen to be in force when the user's code started."""

    calls: int = 0
    init: int = 0
    """The program was not process 1 of its room: an init of ours was."""
    own_user: int = 0
    """The kernel gave the program's user as the one chosen for this call."""
    seccomp: int = 0
    no_rights: int = 0
    """No capabilities, and none to be gained."""
    memory_limit: int = 0
    """The program's zygote was in the cgroup that has the call's limit: programs are born there, and can't leave."""


class ZygoteCall:
    """One run of a program. Use once: `await ZygoteCall(...).run()`."""

    def __init__(
        self,
        jail: ZygoteJail,
        zygote: Zygote,
        code: bytes,
        stdin: bytes,
        limits: Limits,
        slot: cgroups.Slot | None,
        confirmed: Confirmed,
    ) -> None:
        """`zygote` is the one of the jail's that forks the program."""
        self._jail, self._zygote, self._code, self._stdin = jail, zygote, code, stdin
        self._limits, self._slot, self._confirmed = limits, slot, confirmed
        self._user = 1 + jail.calls % (jail.ids.count - 1) if jail.ids.count > 1 else 0
        self._loop = asyncio.get_running_loop()
        self._out, self._err = Stream.several(limits.output_bytes, limits.output_bytes)
        self._cause: Cause = ""
        self._init = -1
        """A pidfd of the room's init, once there is one."""
        self._asked = False
        """Whether a zygote has been asked for the program."""
        self._started: Said | None = None
        self._ended: Said | None = None
        self._room_cpu_us: int | None = None
        """Set when the room is gone."""
        self._lost_init = False
        """Whether the room's init was killed by others: the kernel then killed the program, and that is our failure."""
        self._failure = ""
        self._over = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []

    def abort(self) -> None:
        """End the program now; `run` returns once it is gone."""
        self._kill("aborted")

    async def run(self) -> Ended:
        """Run to the end. Raises `OSError` if the host lacks descriptors, or the jail has ended before it began."""
        jail = self._jail
        jail.calls += 1
        jail.tenant = self
        try:
            if self._slot is not None:
                self._slot.prepare(self._limits, our_processes=len(jail.zygotes))
            jail.ask_for_room(self._limits)
            self._timers.append(self._loop.call_later(STARTS_WITHIN_S, self._kill, "start"))
            await self._over
        except asyncio.CancelledError:  # the event loop is being torn down: no more waiting on it
            jail.end_now()
            raise
        finally:
            jail.tenant = None
            for timer in self._timers:
                timer.cancel()
            for stream in (self._out, self._err):
                stream.unwatch()
                stream.drain()
                stream.close()
            if self._init >= 0:
                os.close(self._init)
                self._init = -1
        return self._conclude()

    def hear(self, said: Said) -> None:
        """The jail's answers, in the order in which they come. What is not expected means that it misbehaves."""
        if said.word == "room" and len(said.descriptors) == 1 and self._init < 0:
            (self._init,) = said.descriptors
            if self._cause:
                self._end_room()
            else:
                self._start_program()
        elif said.word == "started" and len(said.numbers) == 7 and self._asked and self._started is None:
            self._on_started(said)
        elif said.word == "ended" and len(said.numbers) == 4 and self._asked and self._ended is None:
            self._ended = said
            if os.WIFSIGNALED(said.numbers[0]) and os.WTERMSIG(said.numbers[0]) == signal.SIGKILL and not self._cause:
                self._lost_init = is_ending(self._init)
            self._end_room()
            self._finish()
        elif said.word == "failed" and self._asked and self._ended is None:
            self._failure, self._asked = said.text, False
            self._end_room()
        elif said.word == "gone" and len(said.numbers) == 1:
            self._room_cpu_us = said.numbers[0]
            self._finish()
        else:
            self._failure = f"the jail said {said.word!r} out of turn"
            self._jail.kill()

    def lose_jail(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _finish(self) -> None:
        """The call is over when its room is, and its zygote has told of the program."""
        if self._room_cpu_us is not None and (self._ended is not None or not self._asked) and not self._over.done():
            self._over.set_result(None)

    def _start_program(self) -> None:
        given: list[int] = []
        try:
            given.append(sealed("code", self._code))
            if self._stdin:
                given.append(sealed("input", self._stdin))
            code, *stdin = given
            self._asked = True
            descriptors = [self._init, code, self._out.writer, self._err.writer, *stdin]
            self._jail.ask_for_program(self._zygote, self._user, self._limits, descriptors)
        except OSError as error:
            self._asked, self._failure = False, str(error)
            self._end_room()
        finally:
            for descriptor in given:
                os.close(descriptor)
        for stream in (self._out, self._err):
            stream.close_writer()
            stream.watch(self._flooded)

    def _on_started(self, said: Said) -> None:
        self._started = said
        set_out_of_memory_score(said.pid, 0)  # it has its zygote's, which is protected
        self._failure = lacks_protection(said, self._user, self._jail.ids.outside)
        if self._failure:
            self._kill("start")
            return
        seen = self._confirmed
        seen.init, seen.seccomp, seen.no_rights = seen.init + 1, seen.seccomp + 1, seen.no_rights + 1
        seen.own_user += self._user != 0
        left = self._limits.wall_seconds - (time.monotonic_ns() - said.numbers[0]) / 1e9
        self._timers[0].cancel()
        self._timers.append(self._loop.call_later(max(0.0, left), self._kill, "timeout"))

    def _flooded(self) -> None:
        self._kill("output_limit")

    def _kill(self, cause: Cause) -> None:
        """End everything of this call. The first cause is the one that counts."""
        if self._over.done():
            return
        self._cause = self._cause or cause
        self._end_room()
        self._timers.append(self._loop.call_later(ENDS_WITHIN_S, self._jail.kill))

    def _end_room(self) -> None:
        """Kill its init: the kernel ends the rest with it."""
        if self._init >= 0:
            send(self._init, signal.SIGKILL)

    def _conclude(self) -> Ended:
        ended_ns = self._ended.numbers[1] if self._ended else time.monotonic_ns()
        wall = (ended_ns - self._started.numbers[0]) / 1e9 if self._started else 0.0
        told = self._ended and self._started and self._cause != "start" and not self._lost_init
        wait_status = self._ended.numbers[0] if self._ended and told else None
        cpu_us = (self._ended.numbers[2] if self._ended else 0) + (self._room_cpu_us or 0)
        out_of_memory = starved = False
        if self._slot is not None:
            out_of_memory, starved = self._slot.out_of_memory(), self._slot.starved()
            peak = self._slot.peak_bytes()
            self._confirmed.memory_limit += self._slot.holds(self._zygote.pid)
        else:
            peak = (self._ended.numbers[3] - self._started.numbers[6]) * 1024 if self._ended and self._started else 0
        self._confirmed.calls += 1
        return Ended(
            stdout=bytes(self._out.kept),
            stderr=bytes(self._err.kept),
            stdout_truncated=self._out.truncated,
            stderr_truncated=self._err.truncated,
            wait_status=wait_status,
            cause=settled(self._cause, self._limits, wall, wait_status is not None),
            out_of_memory=out_of_memory,
            starved=starved,
            wall_seconds=wall,
            cpu_seconds=cpu_us / 1e6,
            peak_bytes=max(0, peak),
            log=" ".join(
                filter(
                    None,
                    (
                        self._failure,
                        "the room's init was killed" if self._lost_init else "",
                        "" if wait_status is not None else self._jail.words(),
                    ),
                )
            ),
        )


def lacks_protection(started: Said, user: int, outside: int) -> str:
    """What is wrong if a program's `started` does not show all that must be in force; empty if it does.

    `user` is the one chosen for it (0: there is but one), `outside` the id that the jail's user 0 has for the host.
    """
    _, pid, own, seccomp, no_new_privileges, capabilities, _ = started.numbers
    own_user = own == user and started.uid == outside + user
    if pid != 1 and seccomp == _FILTERED and no_new_privileges == 1 and capabilities == 0 and (own_user or not user):
        return ""
    return f"a program said of its protections: {started.text}, sent by user {started.uid}"
