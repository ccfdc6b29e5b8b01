"""What supervision costs when nobody dies: the drill's recipe, trained in turns with and without it, in one run.

    python -m benchmarks.supervision_overhead                # a quarter of an hour on two idle cores
    python -m benchmarks.supervision_overhead --rounds 3 --json

Three arms, real Ray, vLLM and nsjail: `unsupervised` restarts nobody and hardly ever asks an actor whether it still
answers; `train` is the recipe as it stands; `drill` is `greenroom drill` with a plan without faults, which also keeps
watch on every process and audits the books at the end. A run's seconds are those of its summary, start-up included.
Rounds alternate between the arms, so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import json
from statistics import mean

from benchmarks.command import DRILL, add_json, add_overrides, as_arguments, at_least, greenroom, parser_of, run, say
from orchestration.recipe_loading import load_recipe
from orchestration.scratch_folder import scratch_folder

UNSUPERVISED = ("supervision.restarts=0", "supervision.frozen_after_seconds=3600")
ARMS = ("unsupervised", "train", "drill")


def seconds_of(arm: str, overrides: list[str]) -> float:
    """Wall-clock seconds of one run. Raises `Failed` if it doesn't end well."""
    settings = [*overrides, f"name={arm}", *(UNSUPERVISED if arm == "unsupervised" else ())]
    with scratch_folder("greenroom-overhead-") as runs:
        command = ["drill" if arm == "drill" else "train", str(DRILL), "--json", "--runs", str(runs)]
        if arm == "drill":
            plan = runs / "no-faults.json"
            plan.write_text('{"faults": []}')
            command += ["--plan", str(plan)]
        greenroom(*command, *as_arguments(settings))
        return json.loads((runs / arm / "summary.json").read_text())["wall_seconds"]


def figures(seconds: dict[str, list[float]]) -> dict[str, dict[str, float | list[float]]]:
    """Of each arm: its runs, their mean, and that over the mean of `unsupervised`. `seconds`: by arm."""
    alone = mean(seconds["unsupervised"])
    return {arm: {"runs_s": runs, "mean_s": mean(runs), "ratio": mean(runs) / alone} for arm, runs in seconds.items()}


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("supervision_overhead", __doc__)
    parser.add_argument("--rounds", type=at_least(1), default=2, help="runs of each arm")
    add_overrides(parser)
    add_json(parser)
    return parser


def main() -> None:
    options = arguments().parse_args()
    load_recipe(DRILL, options.overrides)  # what is wrong with them shows at once
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(options.rounds):
        for arm in ARMS:
            seconds[arm].append(seconds_of(arm, options.overrides))
            say(f"round {number + 1} of {options.rounds}, {arm}: {seconds[arm][-1]:.1f} s")
    found = figures(seconds)
    if options.json:
        print(json.dumps(found))
        return
    print("| | seconds of a run, mean | times `unsupervised` |\n|---|---|---|")
    for arm, of_arm in found.items():
        print(f"| {arm} | {of_arm['mean_s']:.1f} | {of_arm['ratio']:.3f} |")


if __name__ == "__main__":
    run(main)
