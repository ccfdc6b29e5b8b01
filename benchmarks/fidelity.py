"""Does the simulator predict how long real rollouts take on real vLLM, and which strategy is faster?

    python -m benchmarks.fidelity calibrate FOLDER              # two engines at once, each on its core
    python -m benchmarks.fidelity run FOLDER --workload long    # for real: the Ray stage, two engines, small KV
    python -m benchmarks.fidelity run FOLDER --workload short
    python -m benchmarks.fidelity compare FOLDER                # simulates the same, and prints both

Both sides run the same function with the same actors (`benchmarks.forced_rollouts`): sampler, rollout actors, balancer,
generators, environment, archive. Real are the stage, the clock and vLLM; the interpreters of both are simulated ones
that sleep. The engines' cost model was fitted to other work: requests that enter together, one turn each.

A round plays the workload once under every strategy; rounds repeat, so that a slow minute of the machine hits all.

The engines are pinned to cores, and on a machine with no more cores than engines all other actors run on the same ones.
What that costs no engine can be asked. So before the rounds another workload (`calibration`) is played under one
strategy. While it runs, messages are timed; they take as long in the simulation. Then the predicted cost of a step is
scaled by one factor, with which this workload takes as long as it took.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.system.actor import ActorError
from actors.system.stage import ActorStartFailed
from benchmarks.command import Failed, add_json, at_least, child, parser_of, run, say
from orchestration.terminal import run_interruptibly, told

if TYPE_CHECKING:
    from orchestration.calibrate import Calibration

ENGINES = 2
CALIBRATION = "calibration"
RUN = ("long", "short")
"""Names of the workloads that strategies are compared by, beside the one for calibration."""


def calibrate_all(folder: Path) -> None:
    """All engines at the same time, as they will run: they share the memory's bandwidth."""
    from benchmarks.fidelity_sides import model_in

    model_in(folder)
    command = [sys.executable, "-m", "benchmarks.fidelity", "calibrate", str(folder), "--core"]
    with ExitStack() as stack:
        running = [stack.enter_context(child([*command, str(core)])) for core in range(ENGINES)]
        if any([process.wait() for process in running]):
            raise Failed("a calibration failed; it says why above")


def calibrations_in(folder: Path) -> list[Calibration]:
    """What `calibrate` has found. Raises `Failed` if it is not there, or not whole."""
    from orchestration.calibrate import load_calibration

    paths = [folder / f"calibration-{core}.json" for core in range(ENGINES)]
    try:
        return [load_calibration(path) for path in paths]
    except FileNotFoundError as error:
        raise Failed(
            f"there is no {error.filename}; make it with: python -m benchmarks.fidelity calibrate {folder}"
        ) from None
    except ValueError as error:
        raise Failed(f"the calibrations in {folder} can't be read; calibrate again: {error}") from None


def compare_all(folder: Path, as_json: bool) -> None:
    """Print each workload that has been run for real beside its prediction. Raises `Failed` if none has been."""
    from benchmarks.fidelity_sides import compare

    calibrations = calibrations_in(folder)
    names = [name for name in RUN if (folder / f"real-{name}.json").exists()]
    if not names:
        raise Failed(f"nothing has been run in {folder}; begin with: python -m benchmarks.fidelity run {folder}")
    for name in names:
        found = compare(folder, name, calibrations)
        print(json.dumps(found), flush=True) if as_json else show(found)


def show(found: dict[str, Any]) -> None:
    print(
        f"\n{found['workload']}: medians of {found['rounds']} runs; a message takes {found['message_s'] * 1e3:.1f} ms, "
        f"a step {found['factor']:.3f} times as long as alone"
    )
    print("| strategy | measured | spread of repeats | predicted | error | allowed | measured / predictive |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for strategy, row in found["strategies"].items():
        print(
            f"| {strategy} | {row['measured_s']:.2f} s | {row['spread']:.1%} | {row['predicted_s']:.2f} s | "
            f"{row['error']:+.1%} | {row['allowed']:.1%} | {found['ratios_to_predictive'][strategy]['measured']:.2f} |"
        )
    for side, order in found["orders"].items():
        print(f"{side}: {' < '.join(order)}")


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("fidelity", __doc__)
    parser.add_argument("what", choices=("calibrate", "run", "compare"))
    parser.add_argument("folder", type=Path, help="where the model, calibrations and times are kept")
    parser.add_argument("--workload", choices=RUN, default="long", help="run: which (default long)")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="run: how many (default 5)")
    parser.add_argument("--core", type=at_least(0), help="calibrate: only the engine of this core, in this process")
    add_json(parser)
    return parser


def main() -> None:
    options = arguments().parse_args()
    folder: Path = options.folder.resolve()
    if options.what == "compare":
        compare_all(folder, options.json)
        return
    from benchmarks.fidelity_sides import calibrate_one, run_for_real

    folder.mkdir(parents=True, exist_ok=True)
    with told(f"{options.what} failed", ActorError, ActorStartFailed):
        if options.what == "run":
            found = run_interruptibly(run_for_real(folder, options.workload, options.rounds, say))
            written = folder / f"real-{options.workload}.json"
            written.write_text(json.dumps(found))
            print(json.dumps(found) if options.json else f"the times are in {written}; compare them with: compare")
        elif options.core is None:
            calibrate_all(folder)
        else:
            calibrate_one(folder, options.core, lambda text: say(f"core {options.core}: {text}"))


if __name__ == "__main__":
    run(main)
