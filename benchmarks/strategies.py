"""Strategies against each other, a lower bound and a clairvoyant, on `benchmarks.batching_simulation`.

    python -m benchmarks.strategies --markdown                     # stages 1, 2, 3 x three KV sizes, 3 seeds
    python -m benchmarks.strategies --engines 8 --stages 1 --kv tight --strategies predictive,worst_case
    python -m benchmarks.strategies --set sigmas=1.5 --jobs 8

`predictive+warm` has seen a step of the same stage before, as in a run nearly every step has; everybody else plays the
measured step alone. The coefficients of the step cost are assumptions until they are calibrated; ratios mean more than
seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from statistics import mean
from typing import Any, NamedTuple, get_args

from benchmarks.batching_simulation import Figures, Simulation, lower_bound
from benchmarks.oracle import Oracle
from policies.balancing import BalancerOptions, Strategy, StrategyName
from policies.balancing_strategies import make_strategy
from policies.batching_records import BatchingLimits
from policies.scripted import Rollout
from policies.step_cost import StepCost
from policies.workloads import PROFILES, Workload

KV_TOKENS = {"tight": 210_000, "middling": 400_000, "loose": 750_000}
"""Per engine; the sizes of the study in the scheduling literature that these are to be compared with."""
GROUP, PER_ENGINE, MAX_RUNNING = 32, 256, 512
WARM, ORACLE = "+warm", "oracle"
MEASURED = 1
"""Number of the step that is measured; warm strategies have seen those before."""
STRATEGIES = (*get_args(StrategyName), "predictive" + WARM, ORACLE)


class Run(NamedTuple):
    """One strategy on one workload."""

    stage: int
    kv: str
    seed: int
    engines: int
    strategy: str
    settings: dict[str, Any]

    def play(self) -> tuple[float, Figures]:
        """The lower bound in seconds, and what came of the strategy."""
        profile = PROFILES[f"rstar2-stage-{self.stage}"]
        rollouts = self._step(MEASURED)
        cost, limits = StepCost(), BatchingLimits(kv_blocks=KV_TOKENS[self.kv] // 16, max_running=MAX_RUNNING)
        strategy, before = self._strategy(rollouts, profile.longest), 0.0
        for number in range(MEASURED if self.strategy.endswith(WARM) else 0):
            earlier = Simulation(strategy, self._step(number), profile.longest, self.engines, limits, cost, before)
            before += earlier.run().makespan_s
        bound = lower_bound(rollouts, profile.longest, self.engines, limits, cost)
        return bound, Simulation(strategy, rollouts, profile.longest, self.engines, limits, cost, before).run()

    def _step(self, number: int) -> dict[str, Rollout]:
        workload = Workload(seed=self.seed, stages={"rl": PROFILES[f"rstar2-stage-{self.stage}"]})
        names = [f"rl/{number}/{index // GROUP}/{index % GROUP}" for index in range(self.engines * PER_ENGINE)]
        return {name: workload.rollout(name) for name in names}

    def _strategy(self, rollouts: dict[str, Rollout], longest: int) -> Strategy:
        if self.strategy == ORACLE:
            lengths = {name: min(rollout.tokens, longest) for name, rollout in rollouts.items()}
            return Oracle(BalancerOptions(), lengths, longest)
        named = {"strategy": self.strategy.removesuffix(WARM), "batch": PER_ENGINE, **self.settings}
        return make_strategy(BalancerOptions.model_validate(named))


class Cell(NamedTuple):
    """All strategies and seeds at one stage and KV size."""

    stage: int
    kv: str
    bounds: list[float]
    """Seconds, by seed."""
    found: dict[str, list[Figures]]
    """By strategy and seed."""

    def makespan(self, strategy: str) -> float:
        return mean(figures.makespan_s for figures in self.found[strategy])

    def preemptions(self, strategy: str) -> float:
        return mean(figures.preemptions for figures in self.found[strategy])

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "kv": self.kv,
            "lower_bound_s": mean(self.bounds),
            "makespan_s": {name: [each.makespan_s for each in found] for name, found in self.found.items()},
            "preemptions": {name: self.preemptions(name) for name in self.found},
            "evenness": {name: mean(each.evenness for each in found) for name, found in self.found.items()},
        }


def cells(chosen: argparse.Namespace) -> Iterator[Cell]:
    """Play everything; cells come in order, each when it is complete."""
    names = chosen.strategies.split(",")
    settings = {key: json.loads(value) for key, _, value in (each.partition("=") for each in chosen.set)}
    with ProcessPoolExecutor(chosen.jobs) as pool:
        played: dict[tuple[int, str], dict[str, list[Future[tuple[float, Figures]]]]] = {
            (stage, kv): {
                name: [
                    pool.submit(Run(stage, kv, seed, chosen.engines, name, settings).play)
                    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)
                ]
                for name in names
            }
            for stage in map(int, chosen.stages.split(","))
            for kv in chosen.kv.split(",")
        }
        for (stage, kv), runs in played.items():
            found = {name: [each.result() for each in futures] for name, futures in runs.items()}
            bounds = [bound for bound, _ in found[names[0]]]
            yield Cell(stage, kv, bounds, {name: [figures for _, figures in each] for name, each in found.items()})


def plain_row(cell: Cell) -> str:
    """Seconds, the ratio to the lower bound, and preemptions of each strategy."""
    bound = mean(cell.bounds)
    columns = (
        f"{name}: {cell.makespan(name):.0f} {cell.makespan(name) / bound:.3f} {cell.preemptions(name):.0f}"
        for name in cell.found
    )
    return f"stage {cell.stage} {cell.kv:>8} bound {bound:.0f} | " + " | ".join(columns)


JUDGED = ("predictive", "predictive" + WARM)


def judged(cell: Cell) -> list[str]:
    """How the predictive ones compare with the fastest strategy that knows no lengths, and with the oracle."""
    fastest = min(cell.makespan(name) for name in cell.found if name != ORACLE and name not in JUDGED)
    return [
        f"{cell.makespan(name) / fastest - 1:+.1%}, {cell.makespan(name) / cell.makespan(ORACLE) - 1:+.1%}"
        for name in JUDGED
    ]


def markdown_head(names: list[str]) -> str:
    columns = ["stage", "KV", "lower bound", *names]
    if {ORACLE, *JUDGED} < set(names):
        columns += [f"{name} to the fastest other, to the oracle" for name in JUDGED]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, ["---:"] * len(columns)))


def markdown_row(cell: Cell) -> str:
    """Ratios to the lower bound; preemptions in thousands, where there are any."""
    bound = mean(cell.bounds)
    columns = [str(cell.stage), cell.kv, f"{bound:.0f} s"]
    for name in cell.found:
        preempted = cell.preemptions(name) / 1000
        columns.append(f"{cell.makespan(name) / bound:.2f}" + (f" ({preempted:.1f}K)" if preempted >= 0.05 else ""))
    if {ORACLE, *JUDGED} < cell.found.keys():
        columns += judged(cell)
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=8, help="256 rollouts each; the paper's step has 64.")
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--kv", default="tight,middling,loose")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="Processes.")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the balancer")
    parser.add_argument("--markdown", action="store_true", help="A table of ratios to the lower bound, as in docs/.")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.markdown:
        print(markdown_head(chosen.strategies.split(",")))
    for cell in cells(chosen):
        if chosen.json:
            print(json.dumps(cell.as_dict()))
        else:
            print(markdown_row(cell) if chosen.markdown else plain_row(cell))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
