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
from collections.abc import Callable
from statistics import mean
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from benchmarks.batching_simulation import Figures, Simulation, lower_bound
from benchmarks.command import add_json, at_least, listed, parser_of, run
from benchmarks.oracle import Oracle
from orchestration.side_by_side import Told, side_by_side
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
        return make_strategy(balancer_options(self.strategy, self.settings))


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


def play_all(chosen: argparse.Namespace, emit: Callable[[Cell], None]) -> None:
    """Play everything; cells come in order, each when it is complete."""
    places = [(stage, kv) for stage in map(int, chosen.stages) for kv in chosen.kv]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    runs = [
        Run(stage, kv, seed, chosen.engines, name, chosen.settings)
        for stage, kv in places
        for name in chosen.strategies
        for seed in seeds
    ]
    played: list[tuple[float, Figures]] = []

    def done(index: int, found: tuple[float, Figures]) -> None:
        played.append(found)
        if len(played) == len(chosen.strategies) * len(seeds):
            of = {name: played[at * len(seeds) :][: len(seeds)] for at, name in enumerate(chosen.strategies)}
            bounds = [bound for bound, _ in played[: len(seeds)]]
            stage, kv = runs[index].stage, runs[index].kv
            emit(Cell(stage, kv, bounds, {name: [figures for _, figures in each] for name, each in of.items()}))
            played.clear()

    side_by_side(_play, runs, jobs=chosen.jobs, done=done)


def _play(run: Run, told: Told) -> tuple[float, Figures]:
    return run.play()


def plain_row(cell: Cell) -> str:
    """Seconds, times the lower bound, and preemptions of each strategy."""
    bound = mean(cell.bounds)
    columns = (
        f"{name}: {cell.makespan(name):.0f} s, {cell.makespan(name) / bound:.3f} times the bound, "
        f"{cell.preemptions(name):.0f} preemptions"
        for name in cell.found
    )
    return f"stage {cell.stage}, {cell.kv} KV, lower bound {bound:.0f} s | " + " | ".join(columns)


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


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("strategies", __doc__)
    parser.add_argument(
        "--engines", type=at_least(1), default=8, help="256 rollouts each (default 8); the paper's step has 64"
    )
    parser.add_argument("--stages", type=listed("1", "2", "3"), default="1,2,3", help="of the paper's training")
    parser.add_argument("--kv", type=listed(*KV_TOKENS), default=",".join(KV_TOKENS), help=", ".join(KV_TOKENS))
    parser.add_argument(
        "--strategies", type=listed(*STRATEGIES), default=",".join(STRATEGIES), help=", ".join(STRATEGIES)
    )
    parser.add_argument("--seeds", type=at_least(1), default=3, help="how many workloads each plays (default 3)")
    parser.add_argument("--first-seed", type=at_least(0), default=0)
    parser.add_argument("--jobs", type=at_least(1), default=1, help="processes (default 1)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="of the balancer, such as sigmas=1.5"
    )
    parser.add_argument("--markdown", action="store_true", help="a table of ratios to the lower bound, as in docs/")
    add_json(parser)
    return parser


def settings_of(given: list[str], strategies: list[str]) -> dict[str, Any]:
    """`--set`. Raises `ValueError` for what is no option of the balancer's, or not of its kind."""
    settings: dict[str, Any] = {}
    for each in given:
        key, _, value = each.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    for name in strategies:
        if name != ORACLE:
            try:
                balancer_options(name, settings)
            except ValidationError as error:
                faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
                raise ValueError(faults) from None
    return settings


def balancer_options(strategy: str, settings: dict[str, Any]) -> BalancerOptions:
    named = {"strategy": strategy.removesuffix(WARM), "batch": PER_ENGINE, **settings}
    return BalancerOptions.model_validate(named)


def main() -> None:
    parser = arguments()
    chosen = parser.parse_args()
    for option in ("stages", "kv", "strategies"):
        if not getattr(chosen, option):
            parser.error(f"argument --{option}: name at least one")
    try:
        chosen.settings = settings_of(chosen.set, chosen.strategies)
    except ValueError as error:
        parser.error(f"argument --set: {error}")

    def emit(cell: Cell) -> None:
        if chosen.json:
            print(json.dumps(cell.as_dict()), flush=True)
        else:
            print(markdown_row(cell) if chosen.markdown else plain_row(cell), flush=True)

    if chosen.markdown and not chosen.json:
        print(markdown_head(chosen.strategies), flush=True)
    play_all(chosen, emit)


if __name__ == "__main__":
    run(main)
