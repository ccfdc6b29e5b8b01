"""A soak of the actors: training under random faults for a quarter of an hour, while memory and books are watched.

    python -m benchmarks.drill_soak                    # fifteen minutes on two cores
    python -m benchmarks.drill_soak --steps 20 --json  # shorter

The drill's recipe with a last stage of many steps, real Ray, vLLM and nsjail. Processes of every kind are killed,
stopped and slowed again and again, sandboxes get no memory, and messages are delayed, dropped and doubled, at targets
drawn from `--seed`; of each kind of actor one is left alive after the first minutes. Then:

- the run ends by itself, and its books balance as a drill's have to (docs/faults.md): nothing is left running or open;
- no kind of actor grows: a line through its memory (what it has for itself alone) over the last quarter of the time has
  a slope below a bound, or one that can't be told from none. Each life of an actor has a line of its own, with one
  slope for all; its first three minutes are left out. The slope of the third quarter is given beside it;
- neither leases nor rollouts, wishes or calls that are open grow in number over the second half.

Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil

from actors.messages import DescribeBalancer, DescribeEnvironment, DescribeRollouts
from actors.system.actor import ActorError, ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.stage import ActorStartFailed
from benchmarks.command import DRILL, add_json, add_overrides, at_least, parser_of, run
from benchmarks.slope import Slope, slope_of
from orchestration.recipe import Recipe
from orchestration.recipe_loading import load_recipe
from orchestration.scratch_folder import scratch_folder
from orchestration.terminal import run_interruptibly, told

if TYPE_CHECKING:
    from actors.system.ray_stage import RayStage
    from orchestration.cast import Cast

ALWAYS = (
    ActorFault(kind="kill", at=20, every=7, actor="environment-*", process="jail"),
    ActorFault(kind="kill", at=30, every=90, actor="environment-1"),
    ActorFault(kind="kill", at=60, every=150, actor="generator-1"),
    ActorFault(kind="kill", at=40, every=100, actor="rollout-1"),
    ActorFault(kind="freeze", at=25, every=50, actor="environment-*", seconds=3),
    ActorFault(kind="freeze", at=80, every=110, actor="generator-*", seconds=4),
    ActorFault(kind="freeze", at=95, every=140, actor="balancer", seconds=2),
    ActorFault(kind="slow", at=100, every=75, actor="*", seconds=5),
    ActorFault(kind="squeeze", at=28, every=37, actor="environment-*", seconds=2),
    ActorFault(kind="delay", at=35, every=31, actor="*", messages=3, seconds=2),
    ActorFault(kind="drop", at=45, every=29, actor="*", messages=2),
    ActorFault(kind="double", at=55, every=23, actor="*", messages=5),
)
AT_FIRST = tuple(
    ActorFault(kind="kill", at=at, actor=actor)
    for actor, times in {
        "balancer": (50, 120, 200),
        "archive": (70, 140, 210),
        "learner": (90, 190),
        "generator-0": (110,),
        "rollout-0": (130, 220),
        "environment-0": (75, 150, 230),
    }.items()
    for at in times
)
"""Who is killed only then is watched afterwards: growth shows in long lives, not in short ones."""
PLAN = ActorFaultPlan(faults=(*ALWAYS, *AT_FIRST))
STEP_S = 4.5
"""What a step takes under these faults on two cores, about: for the default number of steps."""
LOOK_S, LOOK_DEADLINE_S = 5.0, 4.0
WARM_UP_S = 180.0
"""Of a process, in which caches fill. Engines and learners make a kernel for each size of batch that they meet."""
LEAST_SAMPLES = 15
SMALL_BYTES_PER_MINUTE = 512 << 10
"""Growth that counts as none, in the last quarter of a run this long. There is some to see (docs/faults.md, "What
grows"): what Ray keeps of each actor that died, two or three a minute here; and a heap's high-water mark rises by a
step of some hundred KiB now and then, which is all the slope of three minutes if it falls into them."""
BYTES_PER_MINUTE = {"environment": 1 << 20, "generator": 20 << 20, "learner": 20 << 20}
"""An environment keeps its last 4,096 results, 1.4 KiB each, and has not met so many for seven minutes. Those that
compute with tensors make and keep a kernel for each new size of batch, up to a number of kernels, and a run that is a
quarter of an hour old still meets new ones."""
OPEN_PER_MINUTE = 0.5
OPEN_KINDS = ("leases", "wishes", "rollouts", "calls")


class Sample(NamedTuple):
    """An actor's memory at one time."""

    at_s: float
    actor: str
    pid: int
    age_s: float
    """Of its process."""
    own: int
    """Bytes that no other process shares."""


class Watch:
    """Looks at actors while they live."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.open: list[tuple[float, dict[str, int]]] = []
        """When, and how many of each of `OPEN_KINDS`; only where all that hold them answered."""

    async def look(self, stage: RayStage, cast: Cast) -> None:
        """Until it is cancelled."""
        while True:
            for part in cast.parts():
                with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                    self._weigh(part.name, stage.pid(ActorRef(part.name)))
            with contextlib.suppress(ActorError, LookupError):
                self.open.append((time.monotonic(), await _open(stage, cast)))
            await asyncio.sleep(LOOK_S)

    def _weigh(self, name: str, pid: int) -> None:
        if not pid:
            return  # it is being started
        process = psutil.Process(pid)
        age = time.time() - process.create_time()
        self.samples.append(Sample(time.monotonic(), name, pid, age, process.memory_full_info().uss))


async def _open(stage: RayStage, cast: Cast) -> dict[str, int]:
    """What is open now. Raises `ActorError` if somebody does not answer."""
    balancer = await stage.port.ask(ActorRef(cast.balancer.name), DescribeBalancer(), LOOK_DEADLINE_S)
    counts = {"leases": sum(load.sessions for load in balancer.loads), "wishes": balancer.waiting}
    playing = calls = 0
    for part in cast.rollouts:
        playing += (await stage.port.ask(ActorRef(part.name), DescribeRollouts(), LOOK_DEADLINE_S)).playing
    for part in cast.environments:
        status = await stage.port.ask(ActorRef(part.name), DescribeEnvironment(), LOOK_DEADLINE_S)
        calls += status.waiting + status.running
    return counts | {"rollouts": playing, "calls": calls}


def memory_slopes(samples: list[Sample], seed: int) -> dict[str, dict[str, Any]]:
    """Of each kind of actor that was seen often enough: slopes in bytes per minute over the third and the last quarter
    of the time, with how many lives and samples the latter is of.
    """
    begin, end = samples[0].at_s, samples[-1].at_s
    found: dict[str, dict[str, Any]] = {}
    for name, quarter in (("third_quarter", 2), ("last_quarter", 3)):
        since, until = (begin + (end - begin) * part / 4 for part in (quarter, quarter + 1))
        lives: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for each in samples:
            if since <= each.at_s <= until and each.age_s >= WARM_UP_S:
                lives[each.actor.partition("-")[0]][each.pid].append(each)
        for kind, by_pid in lives.items():
            of = [(life, each) for life, seen in enumerate(by_pid.values()) for each in seen]
            if len(of) >= LEAST_SAMPLES:
                minutes, sizes = [each.at_s / 60 for _, each in of], [float(each.own) for _, each in of]
                slope = slope_of(minutes, sizes, np.random.default_rng(seed), [life for life, _ in of])
                found.setdefault(kind, {})[name] = slope
                found[kind] |= {"lives": len(by_pid), "samples": len(of), "own_bytes": of[-1][1].own}
    return found


def open_slopes(looks: list[tuple[float, dict[str, int]]], seed: int) -> dict[str, dict[str, Any]]:
    """Of what is open in the second half of the time: slopes in number per minute, and means of both quarters."""
    later = [look for look in looks if look[0] >= (looks[0][0] + looks[-1][0]) / 2]
    half = len(later) // 2
    return {
        kind: {
            "slope": slope_of(
                [at / 60 for at, _ in later], [float(counts[kind]) for _, counts in later], np.random.default_rng(seed)
            ),
            "third_quarter": float(np.mean([counts[kind] for _, counts in later[:half]])),
            "last_quarter": float(np.mean([counts[kind] for _, counts in later[half:]])),
        }
        for kind in OPEN_KINDS
    }


async def soak(recipe: Recipe, seed: int, folder: Path) -> dict[str, Any]:
    """All figures, with what is wrong under `faults`."""
    from orchestration.ray_drill import RayDrill
    from orchestration.training_run import run_training

    drill, watch = RayDrill(recipe, folder, PLAN, seed), Watch()

    @contextlib.asynccontextmanager
    async def beside(stage: RayStage, cast: Cast) -> AsyncIterator[None]:
        async with drill.beside(stage, cast):
            looking = asyncio.create_task(watch.look(stage, cast))
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    with contextlib.redirect_stdout(sys.stderr):
        summary = await run_training(recipe, folder, beside=beside)
    report = drill.report(summary)
    memory, still_open = memory_slopes(watch.samples, seed), open_slopes(watch.open, seed)
    faults = list(report.faults)
    for kind, of in memory.items():
        slope: Slope | None = of.get("last_quarter")
        if slope is not None and slope.grows(BYTES_PER_MINUTE.get(kind, SMALL_BYTES_PER_MINUTE)):
            faults.append(f"memory of {kind} grows by {slope.value / 2**20:.2f} MiB a minute")
    for kind, of in still_open.items():
        if of["slope"].grows(OPEN_PER_MINUTE):
            faults.append(f"open {kind} grow by {of['slope'].value:.2f} a minute")
    figures = asdict(report)
    return {
        "minutes": report.wall_seconds / 60,
        "finished": report.finished,
        "hit": report.hit,
        "deaths": report.deaths,
        "retried": report.retried,
        "rewinds": len(figures["rewinds"]),
        "memory_bytes_per_minute": memory,
        "open": still_open,
        "faults": faults,
    }


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("drill_soak", __doc__)
    parser.add_argument(
        "--steps",
        type=at_least(1),
        default=round(900 / STEP_S),
        help="of the last stage (default 200: fifteen minutes)",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the faults' targets")
    add_overrides(parser)
    parser.add_argument("--keep", type=Path, help="where the run's folder goes, and stays; by default it is deleted")
    add_json(parser)
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    settings = [f"stages.rl-2.steps={options.steps}", "supervision.restarts=1000", *options.overrides]
    recipe = load_recipe(DRILL, [*settings, f"name=soak-{options.seed}"])
    with scratch_folder("greenroom-soak-") as scratch:
        folder: Path = (scratch if options.keep is None else options.keep.resolve()) / recipe.name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            parser.error(f"argument --keep: there is a run already, {folder}")
        with told("the run failed", ActorError, ActorStartFailed):
            figures = run_interruptibly(soak(recipe, options.seed, folder))
    print(json.dumps(figures, indent=None if options.json else 2))
    return 0 if figures["finished"] and not figures["faults"] else 1


if __name__ == "__main__":
    run(main)
