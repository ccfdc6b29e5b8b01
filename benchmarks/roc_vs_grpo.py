"""GRPO-RoC against plain GRPO on the quickstart's task, from the same SFT weights and with the same rollouts.

    python -m benchmarks.roc_vs_grpo                 # seeds 0, 1, 2: nine runs, half an hour on two idle cores
    python -m benchmarks.roc_vs_grpo --seeds 0 1 2 3 4 --json

For each seed the quickstart's SFT (demonstrations with failing calls) runs once; both arms go on from its weights with
the same problems, limits, learning rate and number of steps. Equal compute: each arm samples 16 rollouts of each
problem. GRPO-RoC keeps 8 of them and learns from those; GRPO learns from all 16, so its learner does twice the work.

Figures per arm: over the last steps of training (every rollout that was sampled, before any resampling) and on held-out
problems at the end. Intervals are 95%: Student's t over seeds, and over the differences of the two arms within seeds.
A run that has finished is not run again. The plot is written to docs/roc-vs-grpo.svg.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from benchmarks.command import (
    QUICKSTART,
    ROOT,
    Failed,
    add_json,
    add_seeds,
    greenroom,
    parser_of,
    refuse_repeats,
    run,
)
from benchmarks.roc_vs_grpo_plot import Curve, Panel, draw

PLOT = ROOT / "docs" / "roc-vs-grpo.svg"
ARMS: dict[str, dict[str, Any]] = {
    "grpo_roc": {"objective": {"name": "grpo_roc"}, "group": 8, "resampling": {"rule": "roc", "oversampling": 2}},
    "grpo": {"objective": {"name": "grpo"}, "group": 16, "resampling": {"rule": "none"}},
}
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5% quantile of Student's t by degrees of freedom."""
LAST_STEPS = 8
"""Of the final stage: what a curve ends at is read from so many steps."""
TRAINED = {
    "tool_error_share_in_correct": "tool errors in correct trajectories",
    "response_tokens_mean": "response length in tokens",
    "reward_mean": "accuracy on the problems of training",
}
"""Figures of a step -> what they are called."""
HELD_OUT = {
    "tool_error_share_in_correct": "tool errors in correct trajectories, held out",
    "mean_response_tokens": "response length in tokens, held out",
    "accuracy": "accuracy, held out",
}
"""Figures of the last evaluation -> what they are called."""


class Interval(NamedTuple):
    """A mean over seeds, with its 95% interval."""

    mean: float
    low: float
    high: float


class Outcome(NamedTuple):
    """One arm from one seed."""

    steps: list[dict[str, Any]]
    summary: dict[str, Any]

    def figures(self) -> dict[str, float]:
        """What the arm has come to, by the names that the table shows."""
        last, end = self.steps[-LAST_STEPS:], self.summary["stages"][-1]
        trained = {label: float(np.mean([step[name] for step in last])) for name, label in TRAINED.items()}
        return trained | {label: float(end[name]) for name, label in HELD_OUT.items()}


def interval(values: Sequence[float]) -> Interval:
    """Student's t: seeds are few, and their spread is unknown."""
    mean = float(np.mean(values))
    half = float(STUDENT[len(values) - 1] * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def train(data: dict[str, Any], runs: Path) -> Path:
    """Run a recipe, unless it has been run to its end; returns the run's folder.

    Raises `Failed` if what has been run has other settings.
    """
    folder = runs / data["name"]
    summary, recipe = folder / "summary.json", runs / "recipes" / f"{data['name']}.toml"
    if summary.is_file() and json.loads(summary.read_text())["finished"]:
        if not recipe.is_file() or tomllib.loads(recipe.read_text()) != data:
            raise Failed(f"{folder} is a run with other settings; delete it, or give another folder (--runs)")
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted run of this benchmark: its name is wanted again
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(tomli_w.dumps(data))
    greenroom("train", str(recipe), "--runs", str(runs), "--json")
    return folder


def sft_recipe(seed: int) -> dict[str, Any]:
    """The quickstart up to the end of its SFT."""
    data = tomllib.loads(QUICKSTART.read_text())
    return data | {"name": f"sft-{seed}", "seed": seed, "stages": {"sft": data["stages"]["sft"]}}


def arm_recipe(arm: str, seed: int, weights: Path) -> dict[str, Any]:
    """The quickstart's RL stages from the weights of an SFT, as an arm has them."""
    data = tomllib.loads(QUICKSTART.read_text())
    stages = {name: stage | ARMS[arm] for name, stage in data["stages"].items() if stage["kind"] == "reinforce"}
    model = {"path": str(weights), "dtype": data["model"]["dtype"]}
    return data | {"name": f"{arm}-{seed}", "seed": seed, "model": model, "stages": stages}


def outcome(folder: Path) -> Outcome:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    return Outcome(steps, json.loads((folder / "summary.json").read_text()))


def compared_outcome(folder: Path) -> Outcome:
    """As `outcome`. Raises `Failed` if a figure is missing: tool errors of correct ones, where none made a call."""
    found = outcome(folder)
    for name in TRAINED:
        for step in found.steps:
            if step[name] is None:
                raise Failed(f"{folder}: step {step['step']} has no {name}, there is nothing to compare")
    for name in HELD_OUT:
        if found.summary["stages"][-1][name] is None:
            raise Failed(f"{folder}: the last evaluation has no {name}, there is nothing to compare")
    return found


def compare(outcomes: dict[str, list[Outcome]]) -> dict[str, dict[str, Interval]]:
    """Each figure's interval in each arm, and that of their difference within seeds."""
    found = {arm: [one.figures() for one in ones] for arm, ones in outcomes.items()}
    table = {}
    for label in (*TRAINED.values(), *HELD_OUT.values()):
        by_arm = {arm: [figures[label] for figures in ones] for arm, ones in found.items()}
        differences = np.subtract(by_arm["grpo_roc"], by_arm["grpo"]).tolist()
        table[label] = {arm: interval(values) for arm, values in by_arm.items()} | {"difference": interval(differences)}
    return table


def panels(outcomes: dict[str, list[Outcome]]) -> list[Panel]:
    """The figures of training, step by step."""
    made = []
    for name, label in TRAINED.items():
        curves = [
            Curve(arm, np.array([[step[name] for step in one.steps] for one in ones])) for arm, ones in outcomes.items()
        ]
        made.append(Panel(label, curves, as_share=not name.startswith("response")))
    return made


def as_text(value: Interval, label: str) -> str:
    if "length" in label:
        return f"{value.mean:.1f} ({value.low:.1f} to {value.high:.1f})"
    return f"{value.mean:.1%} ({value.low:.1%} to {value.high:.1%})"


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("roc_vs_grpo", __doc__)
    add_seeds(parser, 0, 1, 2)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "roc-vs-grpo", help="where the runs' folders are")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the curves go, as SVG")
    add_json(parser)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    refuse_repeats(parser, "--seeds", options.seeds)
    if len(options.seeds) - 1 not in STUDENT:
        parser.error(f"argument --seeds: intervals are over 2 to {max(STUDENT) + 1} seeds, not {len(options.seeds)}")
    if not options.plot.parent.is_dir():
        parser.error(f"argument --plot: there is no folder {options.plot.parent}")
    runs = options.runs.resolve()
    outcomes: dict[str, list[Outcome]] = {arm: [] for arm in ARMS}
    for seed in options.seeds:
        weights = train(sft_recipe(seed), runs) / "checkpoints" / "sft"
        for arm in ARMS:
            outcomes[arm].append(compared_outcome(train(arm_recipe(arm, seed, weights), runs)))
    table = compare(outcomes)
    draw(options.plot, panels(outcomes))
    if options.json:
        print(json.dumps({label: {name: i._asdict() for name, i in row.items()} for label, row in table.items()}))
        return
    print("| | GRPO-RoC | GRPO | difference |\n|---|---|---|---|")
    for label, row in table.items():
        print(f"| {label} | " + " | ".join(as_text(row[name], label) for name in ("grpo_roc", "grpo", "difference")))


if __name__ == "__main__":
    run(main)
