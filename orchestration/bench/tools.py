"""How many calls a second our interpreters run, in full isolation, and how many a bare `python file.py` for each call.

Both sides run the same programs at the same concurrency on the same cores: the sandbox's interpreter and libraries,
compiled bytecode, the same variables for threads. The plain side has no isolation and no limits; each of its slots is a
thread in `subprocess.run`, which is quicker than asyncio's subprocesses. The two take turns in short rounds, after a
warm-up, so that a slow minute of the machine hits both. Every answer of both sides is checked.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel

from env.image import Image
from env.interpreters import Interpreters
from env.jail import THREADS
from env.tool_call import Limits, ToolCall
from env.zygotes import Zygotes
from orchestration.bench import mixed_calls
from orchestration.scratch_folder import scratch_folder

LIMITS = Limits(wall_seconds=60.0)


@dataclass(frozen=True)
class Kind:
    """A program, and what it prints."""

    code: str
    prints: str


KINDS = {
    "trivial": Kind("print(6 * 7)", "42\n"),
    "numpy": Kind("import numpy as np\nprint(np.arange(10).sum())", "45\n"),
    "sympy": Kind(
        "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))",
        "[2, 3]\n",
    ),
}


class KindFigures(BaseModel):
    """Calls per second of wall-clock time."""

    ours_per_s: float
    spawn_per_s: float
    ratio: float
    """`ours_per_s / spawn_per_s`."""
    ours_calls: int
    spawn_calls: int
    core_seconds: float
    """Seconds of one core that a call of ours takes, all that keeps it apart included: cores / `ours_per_s`."""


class ToolFigures(BaseModel):
    """What `greenroom bench tools` prints."""

    kinds: dict[str, KindFigures]
    concurrency: int
    seconds: float
    """Measured seconds of each side and kind."""
    rounds: int
    isolation: str
    weaknesses: tuple[str, ...]
    confirmed: dict[str, int]
    """For how many of our calls each protection was seen to be in force when the program started."""


class UnprotectedCall(RuntimeError):
    """A call ran without a protection that it should have had; the figures would be worth nothing."""


async def bench_tools(
    seconds: float = 6.0,
    rounds: int = 3,
    concurrency: int | None = None,
    allow_weaker: bool = False,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> ToolFigures:
    """Measure each kind on both sides for `seconds` each, in alternating rounds.

    `concurrency` calls run at once on either side, by default two for each core, so that no core waits for the kernel
    to take a process apart. With `allow_weaker` a host that can't protect calls fully is measured, too, and the figures
    say what it lacks. `say` hears of each kind.

    Raises `UnprotectedCall`, or `RuntimeError` if a program did not print what it should.
    """
    concurrency = concurrency or _two_for_each_core()
    pool = Interpreters(LIMITS, workers=concurrency, run_id="bench-tools")
    kinds: dict[str, KindFigures] = {}
    try:
        async with protecting(pool, allow_weaker) as isolation:
            with (
                scratch_folder("greenroom-bench-") as folder,
                ThreadPoolExecutor(concurrency) as threads,
            ):
                for name, kind in KINDS.items():
                    say(f"{name}: {rounds} rounds of {seconds / rounds:.1f} s for each side")
                    spawn = PlainSpawns(folder / f"call_{name}.py", kind, threads)
                    kinds[name] = await _compare(_ours(pool, kind), spawn.run, concurrency, seconds, rounds)
    finally:
        await pool.close()
    return ToolFigures(
        kinds=kinds,
        concurrency=concurrency,
        seconds=seconds,
        rounds=rounds,
        isolation=pool.isolation_kind,
        weaknesses=isolation.weaknesses,
        confirmed=asdict(isolation.confirmed),
    )


def _two_for_each_core() -> int:
    return 2 * (os.cpu_count() or 1)


async def bench_mix(
    seconds: float, seed: int, allow_weaker: bool = False, *, say: Callable[[str], None] = lambda text: None
) -> float:
    """Calls of `mixed_calls` per second, on interpreters of their own at the default concurrency.

    `say` hears when it begins. Raises as `bench_tools` does.
    """
    concurrency = _two_for_each_core()
    pool = Interpreters(mixed_calls.LIMITS, workers=concurrency, run_id="bench-mix")
    calls = mixed_calls.mixed_calls(1 << 60, seed, name="mix")

    async def run() -> None:
        expected = next(calls)
        result = await pool.run(expected.call)
        if not expected.is_met_by(result):
            raise RuntimeError(f"a call that should print {expected.stdout!r} came to {result}")

    try:
        async with protecting(pool, allow_weaker):
            say(f"the mix without actors: {seconds:g} s")
            await _keep_running(run, concurrency, 1.0)  # warm up: zygotes import
            count, wall = await _keep_running(run, concurrency, seconds)
    finally:
        await pool.close()
    return count / wall


@asynccontextmanager
async def protecting(pool: Interpreters, allow_weaker: bool) -> AsyncIterator[Zygotes]:
    """The isolation of a pool that is measured in the block.

    Unless `allow_weaker`, raises `UnprotectedCall` on a host that can't protect calls fully, before anything is
    measured, and after it if a call was not protected.
    """
    isolation = await pool.isolation()
    assert isinstance(isolation, Zygotes), "the default isolation"
    if isolation.weaknesses and not allow_weaker:
        raise UnprotectedCall(
            f"this host isolates less than it should: {'; '.join(isolation.weaknesses)}. "
            "Mend that, or see with --allow-weaker how fast calls are without it"
        )
    yield isolation
    if not allow_weaker:
        demand_protection(asdict(isolation.confirmed))


def demand_protection(confirmed: dict[str, int]) -> None:
    """Raises `UnprotectedCall` unless every call had an init, a filter, a user of its own and a memory limit."""
    calls = confirmed["calls"]
    lacking = {name: count for name, count in confirmed.items() if count != calls}
    if lacking or not calls:
        raise UnprotectedCall(f"of {calls} calls not all were fully protected: {lacking}")


def _ours(pool: Interpreters, kind: Kind) -> Callable[[], Awaitable[None]]:
    serial = iter(range(1 << 60))

    async def run() -> None:
        result = await pool.run(ToolCall(id=f"{next(serial)}", code=kind.code, limits=LIMITS))
        if (result.status, result.stdout) != ("success", kind.prints):
            raise RuntimeError(f"our call came to {result}")

    return run


class PlainSpawns:
    """`python file.py`, a process for each call, without isolation."""

    def __init__(self, file: Path, kind: Kind, threads: ThreadPoolExecutor) -> None:
        image = Image()
        file.write_text(kind.code)
        self._command = [str(image.executable), str(file)]
        self._environment = {"PATH": os.environ.get("PATH", ""), "LD_LIBRARY_PATH": str(image.prefix / "lib")}
        self._environment |= {"PYTHONPATH": str(image.libraries), **THREADS}
        self._kind, self._threads = kind, threads

    async def run(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._run)

    def _run(self) -> None:
        done = subprocess.run(self._command, env=self._environment, capture_output=True, text=True)
        if (done.returncode, done.stdout) != (0, self._kind.prints):
            raise RuntimeError(f"a plain process ended with {done.returncode}: {done.stdout}{done.stderr}")


async def _compare(
    ours: Callable[[], Awaitable[None]],
    spawn: Callable[[], Awaitable[None]],
    concurrency: int,
    seconds: float,
    rounds: int,
) -> KindFigures:
    sides = {"ours": ours, "spawn": spawn}
    calls, spent = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0.0)
    for side in sides.values():  # warm up: zygotes import, files come into the page cache
        await _keep_running(side, concurrency, 0.5)
    for _ in range(rounds):
        for name, side in sides.items():
            count, wall = await _keep_running(side, concurrency, seconds / rounds)
            calls[name] += count
            spent[name] += wall
    ours_per_s, spawn_per_s = (calls[name] / spent[name] for name in ("ours", "spawn"))
    return KindFigures(
        ours_per_s=ours_per_s,
        spawn_per_s=spawn_per_s,
        ratio=ours_per_s / spawn_per_s,
        ours_calls=calls["ours"],
        spawn_calls=calls["spawn"],
        core_seconds=(os.cpu_count() or 1) / ours_per_s,
    )


async def _keep_running(run: Callable[[], Awaitable[None]], concurrency: int, seconds: float) -> tuple[int, float]:
    """Keep `concurrency` calls running for `seconds`; returns how many ended, and the time until the last of them."""
    start = time.perf_counter()
    ended = 0

    async def one_after_another() -> None:
        nonlocal ended
        while time.perf_counter() - start < seconds:
            await run()
            ended += 1

    await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    return ended, time.perf_counter() - start
