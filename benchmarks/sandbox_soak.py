"""A soak: attacks and honest calls in a mix, and a look at what they leave behind.

    python -m benchmarks.sandbox_soak                # fifteen minutes
    python -m benchmarks.sandbox_soak --minutes 2 --json

Processes, mounts, cgroups and file descriptors at the end have to be those at the beginning, every honest call must get
its own right answer, every attack one of the statuses that it may get, and memory must not grow: the slope of this
process's own memory (unique set size; least squares over the second half of the time) stays below a bound, or can't be
told from none. Its interval is that of a bootstrap over blocks of samples, because neighbours are alike. Exit code 1 if
not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import psutil
from pydantic import BaseModel

from benchmarks.command import add_json, parser_of, run
from benchmarks.slope import Slope, slope_of
from env.call_scheduler import CallScheduler
from env.host_state import HostState
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall, ToolResult
from orchestration.terminal import run_interruptibly

HONEST_LIMITS = Limits(wall_seconds=20.0, memory_bytes=96 << 20, processes=24, output_bytes=32 << 10)
"""Time enough on a machine that the attacks keep busy."""
LIMITS = HONEST_LIMITS.model_copy(update={"wall_seconds": 1.0})
WORKERS, CORES = 6, 2
SAMPLE_S = 2.0
LEAST_MINUTES = 0.5
SLOPE_BYTES_PER_MINUTE = 256 << 10
"""Growth that counts as none: allocators and caches settle for a while, and a minute is short."""
ATTACK_SHARE = 0.5
PATIENCE = {"memory hog", "many files"}
"""Attacks that another limit than the clock's has to end, however busy the machine is."""

ANY_ERROR = {"error", "killed", "memory", "timeout", "output_limit"}
ATTACKS: dict[str, tuple[str, set[str]]] = {
    # name: (program, statuses that it may get)
    "endless loop": ("while True: pass", {"timeout"}),
    "deaf to signals": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except Exception: pass\n"
        "while True: pass",
        {"timeout"},
    ),
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ANY_ERROR),
    "thread bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        ANY_ERROR,
    ),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(99)\n    os._exit(0)",
        {"success"},
    ),
    "memory hog": ("held = []\nwhile True: held.append(b'x' * (1 << 20))", {"memory"}),
    "flood": ("while True: print('x' * 1000)", {"output_limit"}),
    "raw flood": ("import os\nwhile True: os.write(1, b'x' * 65536)", {"output_limit"}),
    "descriptors": ("import os\nheld = []\nwhile True: held.append(os.open('/dev/null', 0))", {"error"}),
    "full disk": ("f = open('big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", ANY_ERROR),
    "many files": ("n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1", {"error"}),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", {"killed"}),
    "kill everybody": ("import os\nos.kill(-1, 9)", ANY_ERROR | {"success"}),
    "kill the parent": ("import os\nos.kill(os.getppid(), 9)", ANY_ERROR | {"success"}),
    "compile bomb": ("compile('(' * 100000 + ')' * 100000, 'x', 'eval')", ANY_ERROR),
    "mount": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
        {"error"},
    ),
    "network": ("import socket\nsocket.create_connection(('1.1.1.1', 53), 1)", {"error"}),
    "exit 137": ("raise SystemExit(137)", {"error"}),
    "early end": ("import os\nos._exit(0)", {"success"}),
    "forged report": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'ended 0 0 0\\n')\n    except OSError: pass\n1/0",
        {"error"},
    ),
}


class SoakFigures(BaseModel):
    """What came of a soak."""

    minutes: float
    honest: int
    attacks: int
    wrong: list[str]
    """What honest calls got that they should not, and attacks that they may not; the first few."""
    wrong_count: int
    statuses: dict[str, dict[str, int]]
    """What each attack got, how often."""
    memory_before_bytes: int
    memory_after_bytes: int
    memory_slope_bytes_per_minute: Slope
    host_before: dict[str, int]
    """How many processes, mounts, cgroups and descriptors the sandbox had before it started."""
    host_after: dict[str, int]
    """The same when all was closed."""
    left_behind: dict[str, str]
    """What was there at the end and not at the beginning, or the other way round."""

    @property
    def clean(self) -> bool:
        return not self.wrong_count and not self.left_behind and not self.memory_grows

    @property
    def memory_grows(self) -> bool:
        return self.memory_slope_bytes_per_minute.grows(SLOPE_BYTES_PER_MINUTE)


@dataclass
class _Books:
    honest: int = 0
    attacks: int = 0
    wrong: list[str] = field(default_factory=list)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)

    def enter_attack(self, name: str, allowed: set[str], result: ToolResult) -> None:
        self.attacks += 1
        self.statuses.setdefault(name, Counter())[result.status] += 1
        if result.status not in allowed:
            self.wrong.append(f"{name}: {result.status} {result.reason} {result.stderr[-200:]}")

    def enter_honest(self, call: ToolCall, result: ToolResult) -> None:
        self.honest += 1
        if (result.id, result.status, result.stdout) != (call.id, "success", f"{call.id}\n"):
            self.wrong.append(f"{call.id}: {result.status} {result.reason} {result.stdout!r} {result.stderr[-200:]}")


async def soak(minutes: float, seed: int) -> SoakFigures:
    """Keep the workers busy for `minutes`, with a mix drawn from `seed`."""
    before = HostState.now()
    interpreters = Interpreters(HONEST_LIMITS, WORKERS, run_id="soak")
    scheduler = CallScheduler(interpreters, cores=CORES, workers=WORKERS)
    books, draw, samples = _Books(), random.Random(seed), []
    end = time.monotonic() + 60 * minutes
    try:
        clients = [_client(scheduler, books, draw, number, end) for number in range(WORKERS)]
        await asyncio.gather(*clients, _sample(samples, end))
    finally:
        await asyncio.gather(scheduler.close(), interpreters.close())
    after = HostState.now()
    times, sizes = np.array(samples).T
    half = times >= (times[0] + times[-1]) / 2
    slope = slope_of(times[half] / 60, sizes[half], np.random.default_rng(seed))
    return SoakFigures(
        minutes=minutes,
        honest=books.honest,
        attacks=books.attacks,
        wrong=books.wrong[:20],
        wrong_count=len(books.wrong),
        statuses={name: dict(counts) for name, counts in sorted(books.statuses.items())},
        memory_before_bytes=int(sizes[0]),
        memory_after_bytes=int(sizes[-1]),
        memory_slope_bytes_per_minute=slope,
        host_before=_counts(before),
        host_after=_counts(after),
        left_behind={name: f"{was!r} -> {is_!r}" for name, (was, is_) in before.differences(after).items()},
    )


def _counts(state: HostState) -> dict[str, int]:
    return {
        "processes": len(state.processes),
        "mounts": len(state.mounts),
        "cgroups": len(state.cgroups),
        "descriptors": state.descriptors,
    }


async def _client(scheduler: CallScheduler, books: _Books, draw: random.Random, number: int, end: float) -> None:
    """One call after another."""
    serial = 0
    while time.monotonic() < end:
        serial += 1
        id = f"client-{number}-{serial}"
        if draw.random() < ATTACK_SHARE:
            name = draw.choice(list(ATTACKS))
            code, allowed = ATTACKS[name]
            limits = HONEST_LIMITS if name in PATIENCE else LIMITS
            books.enter_attack(name, allowed, await scheduler.run(ToolCall(id=id, code=code, limits=limits)))
        else:
            call = ToolCall(id=id, code=f"print('{id}')", limits=HONEST_LIMITS)
            books.enter_honest(call, await scheduler.run(call))


async def _sample(samples: list[tuple[float, int]], end: float) -> None:
    """This process's own memory, now and then."""
    me = psutil.Process()
    while time.monotonic() < end:
        await asyncio.sleep(SAMPLE_S)
        gc.collect()
        samples.append((time.monotonic(), me.memory_full_info().uss))


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("sandbox_soak", __doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="how long (default 15, at least 0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of the mix")
    add_json(parser)
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if not LEAST_MINUTES <= options.minutes < math.inf:
        parser.error(f"argument --minutes: a slope needs {LEAST_MINUTES} or more, not {options.minutes}")
    figures = run_interruptibly(soak(options.minutes, options.seed))
    print(figures.model_dump_json() if options.json else figures.model_dump_json(indent=2))
    return 0 if figures.clean else 1


if __name__ == "__main__":
    run(main)
