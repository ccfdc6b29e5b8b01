"""The quickstart and its control experiments, one after another, in one table.

    python -m benchmarks.quickstart_runs                     # seeds 0, 1, 2, then both controls with seed 0
    python -m benchmarks.quickstart_runs seed-1 no-tools     # just these

- `seed-N`: the recipe as it is, with another seed;
- `shuffled`: each step's rewards are dealt out to its rollouts at random: what is gained then is not learned
  from rewards;
- `no-tools`: demonstrations answer at once, and calls are refused: what is solved then needs no code.

Each run goes to RUNS/NAME/; the figures are read from its summary.json. A run takes as long as the quickstart.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.command import QUICKSTART, ROOT, as_arguments, greenroom, parser_of, refuse_repeats, run

SEED = re.compile("seed-([0-9]+)")
SHUFFLED = ["stages.rl-1.rewards=shuffled", "stages.rl-2.rewards=shuffled"]
EXPERIMENTS = {f"seed-{seed}": [f"seed={seed}"] for seed in range(3)} | {
    "shuffled": SHUFFLED,
    "no-tools": ["tools=[]"],
}


def summary_of(name: str, runs: Path) -> dict[str, Any]:
    """Run one experiment; returns its summary."""
    settings = [f"name={name}", *EXPERIMENTS.get(name, [name.replace("seed-", "seed=")])]
    return json.loads(greenroom("train", str(QUICKSTART), "--runs", str(runs), "--json", *as_arguments(settings)))


def row(name: str, summary: dict[str, Any]) -> str:
    """One line of the table: accuracy and tool-error share from the first stage to the last."""
    first, last = summary["stages"][0], summary["stages"][-1]
    errors = [stage["tool_error_share_in_correct"] for stage in (first, last)]
    before, after = ("-" if share is None else f"{share:.1%}" for share in errors)  # where nothing is solved: none
    return (
        f"| {name} | {first['accuracy']:.1%} | {last['accuracy']:.1%} ({last['accuracy_low']:.1%} to "
        f"{last['accuracy_high']:.1%}) | {100 * (last['accuracy'] - first['accuracy']):+.1f} | "
        f"{before} | {after} | {summary['wall_seconds']:.0f} |"
    )


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("quickstart_runs", __doc__)
    parser.add_argument(
        "experiments", nargs="*", metavar="NAME", default=list(EXPERIMENTS), help=", ".join(EXPERIMENTS)
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs' folders are made")
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    for name in options.experiments:
        if name not in EXPERIMENTS and not SEED.fullmatch(name):
            parser.error(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)} or seed-N")
    refuse_repeats(parser, "NAME", options.experiments)
    print(
        "| run | accuracy after SFT | at the end | points | tool errors in correct after SFT | at the end | seconds |"
    )
    print("|-----|-----|-----|-----|-----|-----|-----|")
    for name in options.experiments:
        print(row(name, summary_of(name, options.runs.resolve())), flush=True)


if __name__ == "__main__":
    run(main)
