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
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "drill.toml"
UNSUPERVISED = ("supervision.restarts=0", "supervision.frozen_after_seconds=3600")
ARMS = ("unsupervised", "train", "drill")


def run(arm: str, runs: Path, overrides: list[str]) -> float:
    """Wall-clock seconds of one run. Raises `subprocess.CalledProcessError` if it doesn't end well."""
    (runs / "no-faults.json").write_text('{"faults": []}')
    settings = [f"name={arm}", *(UNSUPERVISED if arm == "unsupervised" else ()), *overrides]
    command = [sys.executable, "-m", "orchestration.cli", "drill" if arm == "drill" else "train", str(RECIPE), "--json"]
    command += ["--runs", str(runs), *(part for setting in settings for part in ("--set", setting))]
    if arm == "drill":
        command += ["--plan", str(runs / "no-faults.json")]
    shutil.rmtree(runs / arm, ignore_errors=True)
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return json.loads((runs / arm / "summary.json").read_text())["wall_seconds"]


def figures(seconds: dict[str, list[float]]) -> dict[str, dict[str, float | list[float]]]:
    """Of each arm: its runs, their mean, and that over the mean of `unsupervised`. `seconds`: by arm."""
    alone = mean(seconds["unsupervised"])
    return {arm: {"runs_s": runs, "mean_s": mean(runs), "ratio": mean(runs) / alone} for arm, runs in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each arm")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=VALUE")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for arm in ARMS:
                seconds[arm].append(run(arm, Path(folder), options.overrides))
                print(f"{arm}: {seconds[arm][-1]:.1f} s", file=sys.stderr, flush=True)
    found = figures(seconds)
    if options.json:
        print(json.dumps(found))
        return
    print("| | seconds | ratio |\n|---|---|---|")
    for arm, of_arm in found.items():
        print(f"| {arm} | {of_arm['mean_s']:.1f} | {of_arm['ratio']:.3f} |")


if __name__ == "__main__":
    main()
