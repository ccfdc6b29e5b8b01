"""A soak of the actors: training under random faults for a quarter of an hour, while memory and books are watched.

    python -m benchmarks.drill_soak                    # fifteen minutes on two cores
    python -m benchmarks.drill_soak --steps 20 --json  # shorter

The drill's recipe with a last stage of many steps, real Ray, vLLM and nsjail. Processes of every kind are killed and
stopped again and again, and messages delayed, dropped and doubled, at targets drawn from `--seed`. Then:

- the run ends by itself, and its books balance as a drill's have to (docs/faults.md): nothing is left running or open;
- no kind of actor grows: a line through its memory (resident, or what it has for itself alone) over the second half of
  the time has a slope below a bound, or one that can't be told from none. Each life of an actor has a line of its own,
  with one slope for all; its first minute is left out, in which caches fill;
- neither leases nor rollouts, wishes, turns or calls that are open grow in number.

Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from actors.messages import DescribeBalancer, DescribeEnvironment, DescribeRollouts
from actors.system.actor import ActorError, ActorRef
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.ray_stage import RayStage
from benchmarks.slope import Slope, slope_of
from orchestration.cast import Cast
from orchestration.ray_drill import RayDrill
from orchestration.recipe_loading import load_recipe
from orchestration.training_run import run_training

RECIPE = Path(__file__).parents[1] / "recipes" / "drill.toml"
PLAN = ActorFaultPlan(
    faults=(
        ActorFault(kind="kill", at=20, every=7, actor="environment-*", process="jail"),
        ActorFault(kind="kill", at=30, every=45, actor="environment-*"),
        ActorFault(kind="kill", at=60, every=150, actor="generator-*"),
        ActorFault(kind="kill", at=40, every=100, actor="rollout-*"),
        ActorFault(kind="kill", at=50, every=170, actor="balancer"),
        ActorFault(kind="kill", at=70, every=130, actor="archive"),
        ActorFault(kind="kill", at=110, every=240, actor="learner"),
        ActorFault(kind="freeze", at=25, every=50, actor="environment-*", seconds=3),
        ActorFault(kind="freeze", at=80, every=110, actor="generator-*", seconds=4),
        ActorFault(kind="freeze", at=95, every=140, actor="balancer", seconds=2),
        ActorFault(kind="delay", at=35, every=31, actor="*", messages=3, seconds=2),
        ActorFault(kind="drop", at=45, every=29, actor="*", messages=2),
        ActorFault(kind="double", at=55, every=23, actor="*", messages=5),
    )
)
STEP_S = 5.5
"""What a step takes under these faults on two cores, about: for the default number of steps."""
LOOK_S, LOOK_DEADLINE_S = 5.0, 4.0
WARM_UP_S = 60.0
LEAST_SAMPLES = 20
BYTES_PER_MINUTE = 1 << 20
"""Growth that counts as none: at this pace an actor takes 1.4 GiB more in a day."""
OPEN_PER_MINUTE = 0.5
OPEN_KINDS = ("leases", "wishes", "rollouts", "calls")


class Sample(NamedTuple):
    """An actor's memory at one time."""

    at_s: float
    actor: str
    pid: int
    age_s: float
    """Of its process."""
    resident: int
    """Bytes."""
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
        memory = process.memory_full_info()
        age = time.time() - process.create_time()
        self.samples.append(Sample(time.monotonic(), name, pid, age, memory.rss, memory.uss))


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
    """Of each kind of actor that was seen often enough: slopes in bytes per minute, and how many lives and samples."""
    begin, end = samples[0].at_s, samples[-1].at_s
    kinds: dict[str, list[Sample]] = defaultdict(list)
    for each in samples:
        if each.at_s >= (begin + end) / 2 and each.age_s >= WARM_UP_S:
            kinds[each.actor.partition("-")[0]].append(each)
    found = {}
    for kind, of in sorted(kinds.items()):
        lives: dict[int, list[Sample]] = defaultdict(list)
        for each in of:
            lives[each.pid].append(each)
        kept = [life for life in lives.values() if len(life) > 1]
        in_order = [(number, each) for number, life in enumerate(kept) for each in life]
        if len(in_order) < LEAST_SAMPLES:
            continue
        numbers, minutes = [number for number, _ in in_order], [each.at_s / 60 for _, each in in_order]
        slopes = {
            what: slope_of(minutes, sizes, np.random.default_rng(seed), numbers)
            for what, sizes in (
                ("resident", [float(each.resident) for _, each in in_order]),
                ("own", [float(each.own) for _, each in in_order]),
            )
        }
        found[kind] = {"lives": len(kept), "samples": len(in_order)} | slopes
    return found


def open_slopes(looks: list[tuple[float, dict[str, int]]], seed: int) -> dict[str, dict[str, Any]]:
    """Of what is open: slopes in number per minute, means of the first and the last quarter of the time."""
    quarter = max(1, len(looks) // 4)
    return {
        kind: {
            "slope": slope_of(
                [at / 60 for at, _ in looks], [float(counts[kind]) for _, counts in looks], np.random.default_rng(seed)
            ),
            "first_quarter": float(np.mean([counts[kind] for _, counts in looks[:quarter]])),
            "last_quarter": float(np.mean([counts[kind] for _, counts in looks[-quarter:]])),
        }
        for kind in OPEN_KINDS
    }


async def soak(steps: int, seed: int, runs: Path, overrides: list[str]) -> dict[str, Any]:
    """All figures, with what is wrong under `faults`."""
    settings = [f"name=soak-{seed}", f"stages.rl-2.steps={steps}", "supervision.restarts=1000", *overrides]
    recipe, folder = load_recipe(RECIPE, settings), runs / f"soak-{seed}"
    folder.mkdir(parents=True)
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
        for what in ("resident", "own"):
            slope: Slope = of[what]
            if slope.grows(BYTES_PER_MINUTE):
                faults.append(f"{what} memory of {kind} grows by {slope.value / 2**20:.2f} MiB a minute")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=round(900 / STEP_S), help="of the last stage")
    parser.add_argument("--seed", type=int, default=0, help="of the faults' targets")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=VALUE")
    parser.add_argument("--keep", type=Path, help="where the run's folder goes, and stays; by default it is removed")
    parser.add_argument("--json", action="store_true", help="print figures as one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = asyncio.run(soak(options.steps, options.seed, options.keep or Path(temporary), options.overrides))
    print(json.dumps(figures, indent=None if options.json else 2))
    raise SystemExit(0 if figures["finished"] and not figures["faults"] else 1)


if __name__ == "__main__":
    main()
