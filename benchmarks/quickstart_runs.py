"""The quickstart and its control experiments, one after another, in one table.

    python benchmarks/quickstart_runs.py                     # seeds 0, 1, 2, then both controls with seed 0
    python benchmarks/quickstart_runs.py seed-1 no-tools     # just these

- `seed-N`: the recipe as it is, with another seed;
- `shuffled`: each step's rewards are dealt out to its rollouts at random: what is gained then is not learned
  from rewards;
- `no-tools`: demonstrations answer at once, and calls are refused: what is solved then needs no code.

Each run goes to RUNS/NAME/; the figures are read from its summary.json. A run takes as long as the quickstart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "quickstart.toml"
SHUFFLED = ["stages.rl-1.rewards=shuffled", "stages.rl-2.rewards=shuffled"]
EXPERIMENTS = {f"seed-{seed}": [f"seed={seed}"] for seed in range(3)} | {
    "shuffled": SHUFFLED,
    "no-tools": ["tools=[]"],
}


def run(name: str, runs: Path) -> dict:
    """Run one experiment; returns its summary."""
    settings = [f"name={name}", *EXPERIMENTS.get(name, [name.replace("seed-", "seed=")])]
    command = [sys.executable, "-m", "orchestration.cli", "train", str(RECIPE), "--runs", str(runs), "--json"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, summary: dict) -> str:
    """One line of the table: accuracy and tool-error share from the first stage to the last."""
    first, last = summary["stages"][0], summary["stages"][-1]
    return (
        f"| {name} | {first['accuracy']:.1%} | {last['accuracy']:.1%} ({last['accuracy_low']:.1%} to "
        f"{last['accuracy_high']:.1%}) | {100 * (last['accuracy'] - first['accuracy']):+.1f} | "
        f"{first['tool_error_share_in_correct']:.1%} | {last['tool_error_share_in_correct']:.1%} | "
        f"{summary['wall_seconds']:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "experiments", nargs="*", metavar="NAME", default=list(EXPERIMENTS), help=", ".join(EXPERIMENTS)
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs' folders are made")
    options = parser.parse_args()
    for name in options.experiments:
        if name not in EXPERIMENTS and not name.removeprefix("seed-").isdigit():
            parser.error(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)} or seed-N")
    print(
        "| run | accuracy after SFT | at the end | points | tool errors in correct after SFT | at the end | seconds |"
    )
    print("|-----|-----|-----|-----|-----|-----|-----|")
    for name in options.experiments:
        print(row(name, run(name, options.runs)), flush=True)


if __name__ == "__main__":
    main()
