"""Verdicts on answers, with a time limit that holds: comparisons run in processes that are killed when it is over.

    verdict = verify("... <answer>\\\\boxed{x < 3}</answer>", gold="(-\\\\infty, 3)")     # anywhere
    verdict = await Verifier(workers=2).verify(response, gold)                        # on an actor's loop

Invariants:
- every answer gets exactly one verdict: one whose comparison hangs gets `timed_out` within the limit, and the next
  one gets a fresh process;
- what is decided at sight (integers, above all) costs no process, and a verifier that never needs one starts none;
- a comparison's time runs only while it is compared: neither the queue nor the start of a process counts;
- no process is left behind, whatever becomes of this one.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from policies.trajectory import Verdict
from policies.verification import Outcome, final_answer, judge_at_sight, verdict_of

log = logging.getLogger(__name__)

LIMIT_S = 5.0
"""Seconds that one comparison may take."""
MEMORY_BYTES = 2 << 30
"""Address space of a worker."""
_GRACE_S = 2.0
"""How long beyond its limit a worker may be silent: its own timer ends it, unless somebody stopped it."""
_STARTS_WITHIN_S = 120.0
_SERVES = 5000
"""Comparisons after which a worker is replaced: sympy's caches grow."""
_TRIES = 2
"""How often an answer is compared whose worker died without being out of time."""
_ROOT = Path(__file__).resolve().parent.parent


class VerifierBroken(RuntimeError):
    """Workers do not start; the text says how to see why."""


class _Worker:
    """One process and the socket to it."""

    def __init__(self, limit_s: float, memory_bytes: int) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "actors.verification_worker"]
        arguments = [str(os.getpid()), str(limit_s), str(memory_bytes)]
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        with theirs:
            self._process = subprocess.Popen(
                command + arguments,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._socket, self._limit_s = ours, limit_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.served = 0

    async def ready(self) -> None:
        """Wait until it can compare. Raises `VerifierBroken`."""
        self._streams = await asyncio.open_unix_connection(sock=self._socket)
        if await self._line(_STARTS_WITHIN_S) != "ready":
            status = self.end()
            raise VerifierBroken(
                f"a verification worker ended with status {status} before it was ready; "
                f"see why with: {sys.executable} -m actors.verification_worker {os.getpid()} 5 {MEMORY_BYTES}"
            )

    async def compare(self, gold: str, answer: str) -> Outcome | None:
        """The outcome; None if the process died with time left. It is of no more use then, or after `timed_out`."""
        assert self._streams is not None, "compare comes after ready"
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._streams[1].write(json.dumps([gold, answer]).encode("ascii") + b"\n")
        outcome = await self._line(self._limit_s + _GRACE_S)
        if outcome is not None:
            self.served += 1
            return outcome
        spent = loop.time() - start
        return "timed_out" if self.end() == -signal.SIGALRM or spent >= self._limit_s else None

    async def _line(self, patience_s: float) -> Outcome | None:
        assert self._streams is not None
        try:
            async with asyncio.timeout(patience_s):
                line = await self._streams[0].readline()
        except (TimeoutError, ConnectionError):
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> int:
        """Kill it, if it is not dead yet; its exit status."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._socket.close()
        self._process.kill()
        return self._process.wait()


class Verifier:
    """Compares answers in at most `workers` processes at once; the rest wait in the order in which they came.

    Belongs to one event loop, on a thread that lives as long as the verifier. Raises `VerifierBroken` from `verify` and
    `compare` if a worker does not start.
    """

    def __init__(self, workers: int = 1, limit_s: float = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._limit_s, self._memory_bytes = limit_s, memory_bytes
        self._slots = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []
        self._closed = False

    async def verify(self, response: str, gold: str, require_tag: bool = True) -> Verdict:
        """The verdict on a response; see the function of the same name."""
        extracted = final_answer(response, require_tag)
        verdict = judge_at_sight(extracted, gold)
        if verdict is None:
            assert extracted is not None, "without an answer there is nothing to compare"
            verdict = await self.compare(extracted, gold)
        return verdict

    async def compare(self, extracted: str, gold: str) -> Verdict:
        """The verdict on an answer that can't be judged at sight."""
        async with self._slots:
            for _ in range(_TRIES):
                outcome = await self._compare_once(extracted, gold)
                if outcome is not None:
                    return verdict_of(extracted, outcome)
                log.warning("a verification worker died; comparing its answer again")
        log.warning("an answer that killed %d workers is taken for one that takes too long", _TRIES)
        return verdict_of(extracted, "timed_out")

    async def close(self) -> None:
        """End all idle workers; busy ones end with their comparison."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    async def _compare_once(self, extracted: str, gold: str) -> Outcome | None:
        worker = await self._free_worker()
        outcome: Outcome | None = None
        try:
            outcome = await worker.compare(gold, extracted)
        finally:
            if outcome in (None, "timed_out") or self._closed or worker.served >= _SERVES:
                worker.end()  # also where the caller gave up
            else:
                self._idle.append(worker)
        return outcome

    async def _free_worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.end()
        worker = _Worker(self._limit_s, self._memory_bytes)
        try:
            await worker.ready()
        except BaseException:  # cancelled, above all
            worker.end()
            raise
        return worker


class _Background:
    """A verifier on a loop of its own, in a thread that lives as long as the process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="greenroom-verification", daemon=True)
        self._thread.start()
        self._verifier = Verifier(workers=os.cpu_count() or 1)

    def compare(self, extracted: str, gold: str) -> Verdict:
        return asyncio.run_coroutine_threadsafe(self._verifier.compare(extracted, gold), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._verifier.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_background: _Background | None = None
_background_lock = threading.Lock()


def verify(response: str, gold: str, require_tag: bool = True) -> Verdict:
    """Is the final answer of `response` right? May be called from any thread, but blocks: not on an event loop.

    Args:
        response: what the model said: its last turn, or the whole transcript as text.
        gold: the answer that counts as right.
        require_tag: whether the answer must stand in an `<answer>` block; without, the last boxed answers are taken.

    Raises `ValueError` if the gold is empty, `VerifierBroken` if no worker starts.
    """
    extracted = final_answer(response, require_tag)
    verdict = judge_at_sight(extracted, gold)
    if verdict is not None:
        return verdict
    assert extracted is not None, "without an answer there is nothing to compare"
    return _running_background().compare(extracted, gold)


def close_verifier() -> None:
    """End the workers of `verify`; the next call starts anew."""
    global _background
    with _background_lock:
        if _background is not None and _background.owner == os.getpid():
            _background.close()
        _background = None


def _running_background() -> _Background:
    global _background
    with _background_lock:
        if _background is None or _background.owner != os.getpid():  # a fork has neither the thread nor the workers
            if _background is None:
                atexit.register(close_verifier)
            _background = _Background()
        return _background
