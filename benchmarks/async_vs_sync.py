"""Asynchronous against synchronous training on the quickstart's task, from the same SFT weights, in one run.

    python -m benchmarks.async_vs_sync                            # seed 0: an SFT, then both arms
    python -m benchmarks.async_vs_sync --seeds 0 1 2 --json       # pooled over seeds
    python -m benchmarks.async_vs_sync --arms synchronous in_flight drain --max-staleness 2

Each arm has the quickstart's RL stages with the same problems, group sizes, limits, learning rate and number of steps;
the arms differ in `max_staleness`, `weight_update`, and the importance weights that asynchronous training has by
default. Runs come one after another, so that each has the machine to itself.

Figures per arm: how much of the time engines took no steps in (`generator_idle_share`: learning, weights and
checkpoints included), seconds per step (the first one of an asynchronous stage, which begins the groups of several
steps, included), tokens learned from by how many versions their weights were behind, groups dropped as too old, and
held-out accuracy at the end, pooled over seeds, with its 95% Wilson interval; the difference to the synchronous arm
with Newcombe's. Where generators and learner share cores, idle generators leave theirs to the learner: less idling need
not mean shorter steps there. A run that has finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import QUICKSTART, ROOT, add_json, add_seeds, at_least, parser_of, refuse_repeats, run
from benchmarks.roc_vs_grpo import Outcome, outcome, sft_recipe, train
from orchestration.metrics import wilson_interval

ARMS: dict[str, dict[str, Any]] = {
    "synchronous": {"max_staleness": 0},
    "in_flight": {"weight_update": "in_flight"},
    "drain": {"weight_update": "drain"},
}
HISTOGRAM = "staleness_tokens_"


class Share(NamedTuple):
    """A share with its 95% interval."""

    value: float
    low: float
    high: float


class ArmFigures(NamedTuple):
    """What an arm has come to, over the steps of all stages and seeds together."""

    generator_idle_share: float
    step_seconds: float
    tokens_per_s: float
    staleness: dict[int, float]
    """Versions behind -> share of the tokens."""
    several_versions_share: float
    groups_too_old: int
    steps: int
    accuracy: Share
    asked: int
    difference: Share | None
    """Of the accuracy to the synchronous arm's; None for that one."""


def arm_recipe(arm: str, seed: int, weights: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The quickstart's RL stages from the weights of an SFT, as an arm has them."""
    data = tomllib.loads(QUICKSTART.read_text())
    update = {"max_staleness": options.max_staleness} | ARMS[arm]
    if options.steps is not None:
        update["steps"] = options.steps
    stages = {name: stage | update for name, stage in data["stages"].items() if stage["kind"] == "reinforce"}
    evaluation = data["evaluation"] | {"before": False, "count": options.evaluated}
    model = {"path": str(weights), "dtype": data["model"]["dtype"]}
    return data | {
        "name": f"{arm}-{seed}",
        "seed": seed,
        "model": model,
        "stages": {name: stages[name] for name in options.stages or stages},
        "evaluation": evaluation,
    }


def figures(outcomes: Sequence[Outcome]) -> ArmFigures:
    """Of one arm, over its seeds."""
    steps = [step for each in outcomes for step in each.steps]
    histogram = Counter[int]()
    for step in steps:
        for name, count in step.items():
            if name.startswith(HISTOGRAM) and count:
                histogram[int(name.removeprefix(HISTOGRAM))] += count
    seconds = [step["time_total_s"] for step in steps]
    idle_s = sum(step["generator_idle_share"] * step["time_total_s"] for step in steps)
    asked = sum(each.summary["stages"][-1]["problems"] for each in outcomes)
    correct = sum(each.summary["stages"][-1]["accuracy"] * each.summary["stages"][-1]["problems"] for each in outcomes)
    return ArmFigures(
        generator_idle_share=idle_s / sum(seconds),
        step_seconds=sum(seconds) / len(steps),
        tokens_per_s=sum(step["model_tokens"] for step in steps) / sum(seconds),
        staleness={behind: count / histogram.total() for behind, count in sorted(histogram.items())},
        several_versions_share=sum(step["several_versions_share"] for step in steps) / len(steps),
        groups_too_old=round(sum(step["groups_too_old"] for step in steps)),
        steps=len(steps),
        accuracy=Share(correct / asked, *wilson_interval(correct, asked)),
        asked=asked,
        difference=None,
    )


def difference(one: Share, other: Share) -> Share:
    """`one - other`, with Newcombe's interval (1998, method 10), made of the Wilson intervals of both."""
    value = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Share(value, value - below, value + above)


def compared(outcomes: dict[str, list[Outcome]]) -> dict[str, ArmFigures]:
    """Each arm's figures, with the difference to the synchronous one."""
    found = {arm: figures(ones) for arm, ones in outcomes.items()}
    base = found["synchronous"].accuracy
    return {
        arm: each if arm == "synchronous" else each._replace(difference=difference(each.accuracy, base))
        for arm, each in found.items()
    }


def table(found: dict[str, ArmFigures]) -> str:
    """In Markdown."""

    def share(each: Share | None, sign: str = "") -> str:
        return "" if each is None else f"{each.value:{sign}.1%} ({each.low:{sign}.1%} to {each.high:{sign}.1%})"

    def histogram(each: ArmFigures) -> str:
        return ", ".join(f"{behind}: {part:.1%}" for behind, part in each.staleness.items())

    rows = {
        "idle share of generators, whole step": [f"{each.generator_idle_share:.1%}" for each in found.values()],
        "seconds per step": [f"{each.step_seconds:.2f}" for each in found.values()],
        "model tokens per second, whole step": [f"{each.tokens_per_s:,.0f}" for each in found.values()],
        "tokens by versions behind": [histogram(each) for each in found.values()],
        "rollouts of several versions": [f"{each.several_versions_share:.1%}" for each in found.values()],
        "groups dropped as too old": [str(each.groups_too_old) for each in found.values()],
        "steps": [str(each.steps) for each in found.values()],
        "held-out accuracy at the end": [share(each.accuracy) for each in found.values()],
        "difference to synchronous": [share(each.difference, "+") for each in found.values()],
    }
    head = f"| | {' | '.join(found)} |\n|---|{'---|' * len(found)}\n"
    return head + "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("async_vs_sync", __doc__)
    add_seeds(parser, 0)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["synchronous", "in_flight"])
    parser.add_argument("--max-staleness", type=at_least(1), default=1, help="of the asynchronous arms")
    parser.add_argument("--stages", nargs="+", choices=["rl-1", "rl-2"], help="only these of the quickstart's")
    parser.add_argument("--steps", type=at_least(1), help="of each stage; the quickstart's own by default")
    parser.add_argument("--evaluated", type=at_least(1), default=512, help="held-out problems")
    parser.add_argument("--weights", type=Path, help="an SFT checkpoint to begin with, instead of making one")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "async-vs-sync", help="where the runs' folders are"
    )
    add_json(parser)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    for option in ("seeds", "arms"):
        refuse_repeats(parser, f"--{option}", getattr(options, option))
    if "synchronous" not in options.arms:
        parser.error("argument --arms: `synchronous` has to be among them, the others are compared with it")
    if options.weights is not None and not (options.weights / "config.json").is_file():
        parser.error(f"argument --weights: {options.weights} holds no model; give a run's checkpoints/sft")
    runs = options.runs.resolve()
    outcomes: dict[str, list[Outcome]] = {arm: [] for arm in options.arms}
    for seed in options.seeds:
        weights = options.weights or train(sft_recipe(seed), runs) / "checkpoints" / "sft"
        for arm in options.arms:
            folder = train(arm_recipe(arm, seed, weights.resolve(), options), runs)
            outcomes[arm].append(outcome(folder))
    found = compared(outcomes)
    if options.json:
        print(json.dumps({arm: _plain(each) for arm, each in found.items()}))
    else:
        print(table(found))


def _plain(each: ArmFigures) -> dict[str, Any]:
    found = each._asdict() | {"accuracy": each.accuracy._asdict()}
    return found | {"difference": None if each.difference is None else each.difference._asdict()}


if __name__ == "__main__":
    run(main)
