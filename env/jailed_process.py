"""One call in one jail: start it, feed it, watch it, end it, say what came of it.

Invariants:
- the deadline is kept here, on the monotonic clock, and counts from the start of the user's program;
- both streams are read as they come and kept up to their cap: a flood costs no memory and can't deadlock;
- the exit code of nsjail counts for nothing (137 may be anything); init's own report does;
- `run` returns when nothing of the jail is left, whatever happened; `abort` makes that happen at once.
"""

from __future__ import annotations

import asyncio
import functools
import marshal
import os
import signal
import time

from env import jail, runner
from env.jail_processes import ENDS_WITHIN_S, STARTS_WITHIN_S, children_of, hurry_nsjail, kill, reap, send
from env.launch import Lane
from env.streams import Stream, sealed
from env.tool_call import Limits
from env.verdict import Cause, Ended, settled

_LOG_BYTES = 8 << 10


@functools.cache
def runner_descriptor() -> int:
    """The runner as a marshalled code object in sealed memory; open for the life of this process."""
    return sealed("runner", marshal.dumps(jail.compiled(runner)))


class JailedProcess:
    """One run of a program. Use once: `await JailedProcess(...).run()`."""

    def __init__(self, nsjail: str, config: int, code: bytes, stdin: bytes, limits: Limits, lane: Lane) -> None:
        self._nsjail, self._config, self._code, self._stdin = nsjail, config, code, stdin
        self._limits, self._lane = limits, lane
        self._cause: Cause = ""
        self._pid = 0
        self._pidfd = -1
        self._exited = asyncio.Event()
        self._started_ns = 0
        self._ended: tuple[int, int, int] | None = None
        self._reaped = False
        self._start_timer: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._open: set[int] = set()
        """Descriptors to close at the end, come what may."""

    def abort(self) -> None:
        """End the program now; `run` returns once it is gone."""
        self._kill("aborted")

    async def run(self) -> Ended:
        """Run to the end. Raises `OSError` if the host lacks descriptors, memory or processes to start a jail."""
        try:
            return await self._run()
        finally:
            for timer in self._timers:
                timer.cancel()
            if self._pid and not self._reaped:  # the event loop is being torn down: no more waiting on it
                self._kill("aborted")
                self._reap()
            for descriptor in self._open:
                os.close(descriptor)

    async def _run(self) -> Ended:
        cap = self._limits.output_bytes
        streams = out, err, status, log = Stream.several(cap, cap, 4096, _LOG_BYTES)
        self._open |= {end for stream in streams for end in (stream.reader, stream.writer)}
        control, control_writer = os.pipe()
        self._open |= {control, control_writer}
        code = sealed("code", self._code)
        self._open.add(code)
        stdin = sealed("input", self._stdin) if self._stdin else os.open(os.devnull, os.O_RDONLY)
        self._open.add(stdin)
        theirs = {
            0: stdin,
            1: log.writer,
            2: log.writer,
            jail.CODE: code,
            jail.STATUS: status.writer,
            jail.CONTROL: control,
            jail.STDOUT: out.writer,
            jail.STDERR: err.writer,
            jail.RUNNER: runner_descriptor(),
            jail.CONFIG: self._config,
        }
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._lane.executor, self._launch, theirs, control_writer)
        for descriptor in (out.writer, err.writer, status.writer, log.writer, control, code, stdin):
            os.close(descriptor)
            self._open.discard(descriptor)
        loop.add_reader(self._pidfd, self._on_exit)
        for stream in (out, err):
            stream.watch(self._flooded)
        loop.add_reader(status.reader, self._on_status, status)
        self._start_timer = loop.call_later(STARTS_WITHIN_S, self._kill, "start")
        self._timers.append(self._start_timer)
        if self._cause:  # aborted while it was being launched
            self._kill(self._cause)
        try:
            await self._exited.wait()
        finally:
            loop.remove_reader(self._pidfd)
            for stream in (out, err, status):
                stream.unwatch()
        await self._wait_for_init(status)
        for stream in (out, err, status, log):
            stream.drain()
        self._read_status(status)
        return self._conclude(out, err, log)

    async def _wait_for_init(self, status: Stream) -> None:
        """nsjail waits for init, unless somebody killed it: then init is on its way out, and with it all the rest.

        Its end shows in its end of the status pipe, which nobody else has.
        """
        deadline = time.monotonic() + ENDS_WITHIN_S
        status.drain()
        while not status.closed and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
            status.drain()

    def _launch(self, theirs: dict[int, int], control: int) -> None:
        """Start nsjail, put it under its limits, and let its program start. Runs in the lane's thread."""
        if self._lane.cgroup is not None:
            self._lane.cgroup.prepare(self._limits)
        self._pid, self._pidfd = self._lane.launch(self._nsjail, theirs)
        self._open.add(self._pidfd)
        os.write(control, runner.START)  # init waits for this: its program can't start outside its limits

    def _flooded(self) -> None:
        self._kill("output_limit")

    def _on_status(self, status: Stream) -> None:
        if status.read():
            self._read_status(status)
        else:  # init is gone
            status.unwatch()
            self._timers += hurry_nsjail(self._pidfd)

    def _read_status(self, stream: Stream) -> None:
        for line in bytes(stream.kept).splitlines():
            kind, *numbers = line.split()
            if kind == b"started" and not self._started_ns:
                self._started_ns = int(numbers[0])
                if self._start_timer is not None:
                    self._start_timer.cancel()
                left = self._limits.wall_seconds - (time.monotonic_ns() - self._started_ns) / 1e9
                timer = asyncio.get_running_loop().call_later(max(0.0, left), self._kill, "timeout")
                self._timers.append(timer)
            elif kind == b"ended" and self._ended is None:
                self._ended = (int(numbers[0]), int(numbers[1]), int(numbers[2]))

    def _on_exit(self) -> None:
        self._exited.set()

    def _kill(self, cause: Cause) -> None:
        """End everything in the jail. The first cause is the one that counts."""
        self._cause = self._cause or cause
        if self._pidfd < 0 or self._exited.is_set() or self._reaped:
            return
        children = children_of(self._pid)
        for child in children:  # init: the kernel ends its namespace with it, and nsjail ends by itself
            kill(child)
        if not children:
            send(self._pidfd, signal.SIGKILL)
        self._timers += hurry_nsjail(self._pidfd)

    def _conclude(self, out: Stream, err: Stream, log: Stream) -> Ended:
        cpu_seconds, peak = self._reap()
        now = time.monotonic_ns()
        ended_ns = self._ended[1] if self._ended else now
        wall = (ended_ns - self._started_ns) / 1e9 if self._started_ns else 0.0
        out_of_memory = starved = False
        if self._lane.cgroup is not None:
            out_of_memory, starved = self._lane.cgroup.out_of_memory(), self._lane.cgroup.starved()
            peak = max(peak, self._lane.cgroup.peak_bytes())
        return Ended(
            stdout=bytes(out.kept),
            stderr=bytes(err.kept),
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
            wait_status=self._ended[0] if self._ended else None,
            cause=settled(self._cause, self._limits, wall, self._ended is not None),
            out_of_memory=out_of_memory,
            starved=starved,
            wall_seconds=wall,
            cpu_seconds=cpu_seconds,
            peak_bytes=peak,
            log=bytes(log.kept).decode("utf-8", "replace"),
        )

    def _reap(self) -> tuple[float, int]:
        """CPU seconds of the whole jail, its start included, and the largest resident set of a process in bytes.

        nsjail's own figure for the latter would include ours, whose memory it shares until its exec.
        """
        largest = self._ended[2] * 1024 if self._ended else 0
        self._reaped = True
        usage = reap(self._pid)
        return (usage.ru_utime + usage.ru_stime if usage is not None else 0.0), largest
