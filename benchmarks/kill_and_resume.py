"""Kills a whole run at named phases and at random moments, resumes it, and compares it with an undisturbed one.

    python -m benchmarks.kill_and_resume                           # everything: about an hour on two cores
    python -m benchmarks.kill_and_resume --modes deterministic --phases decode,checkpoint --random 1 --json
    python -m benchmarks.kill_and_resume --modes deterministic --chained demonstrations:40,decode:9,random,random

Real Ray, real vLLM, real nsjail; each death is SIGKILL to the process that directs the run, and to the actor that has
reached the phase. In deterministic mode the final weights and the sequence of trained groups (with the digest of all
that the learner was given) must be bit-identical to those of the undisturbed run. In normal mode each step must be
trained once, from the problems that are due, each of them rolled out in full.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actors.storage.trained_steps import FILE, read_trained_steps
from actors.system.kill_point import kill_variable
from benchmarks.command import (
    GREENROOM,
    QUICKSTART,
    Failed,
    add_json,
    add_overrides,
    as_arguments,
    at_least,
    child,
    listed,
    parser_of,
    run,
    say,
)
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import RECIPE_FILE
from orchestration.scratch_folder import scratch_folder

SETTINGS = (
    "name=kill-and-resume",
    "checkpoints.interval_seconds=0",
    "stages.sft.steps=150",
    "stages.rl-1.steps=3",
    "stages.rl-1.prompts=6",
    "stages.rl-1.group=4",
    "stages.rl-2.steps=2",
    "stages.rl-2.prompts=6",
    "stages.rl-2.group=4",
    "evaluation.count=16",
)
"""The quickstart, cut to about a minute and a half on two idle cores."""
MODES = ("deterministic", "normal")
PHASES = {
    "demonstrations": "demonstrations:40",
    "prefill": "prefill:6",
    "decode": "decode:200",
    "tool": "tool:25",
    "verification": "verification:40",
    "archive": "archive:45",
    "ranks": "ranks:152",
    "learned": "learned:152",
    "checkpoint": "checkpoint:153",
    "sync": "sync:3",
}
"""Phase -> the time at which reaching it is the end: within the first RL stage, where there is a choice."""
SETTINGS_OF_PHASE = {"ranks": ("learner.count=2", "learner.threads=1")}
"""Beside `SETTINGS`. In normal mode only: a deterministic run has one learner."""
RANDOM, RANDOM_S = "random", (10.0, 70.0)
"""In a chain: a moment so many seconds after the run's start or resumption. A start takes about half of that."""
LONGEST_RUN_S = 1200.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one death."""

    mode: str
    death: str
    died: bool
    """Whether the run was killed; one that ended before its phase was reached was not."""
    same: bool
    """Whether it ended as it had to."""
    seconds_before: float
    seconds_after: float
    """From the resumption to the end."""
    what: str = ""


class Runs:
    """Runs of one recipe in one mode."""

    def __init__(self, mode: str, folder: Path, settings: list[str]) -> None:
        self.mode, self.folder = mode, folder
        self.settings = [*settings, *(["deterministic=true"] if mode == "deterministic" else [])]
        self.recipe = load_recipe(QUICKSTART, self.settings)

    def train(self, runs: Path, *arguments: str, kill_after_s: float | None = None) -> tuple[int, float]:
        """Exit code and seconds of `greenroom train`."""
        command = [*GREENROOM, "train", *arguments, "--runs", str(runs)]
        began = time.monotonic()
        with (self.folder / f"{runs.name}.log").open("a") as log:
            with child(command, stdout=log, stderr=subprocess.STDOUT) as process:
                try:
                    process.wait(kill_after_s or LONGEST_RUN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        return process.returncode, time.monotonic() - began

    def begin(self, runs: Path, *arguments: str, kill_after_s: float | None = None) -> tuple[int, float]:
        return self.train(runs, str(QUICKSTART), *as_arguments(self.settings), *arguments, kill_after_s=kill_after_s)

    def resume(self, runs: Path) -> tuple[int, float]:
        return self.train(runs, "--resume", self.recipe.name)

    def outcome(self, death: str, undisturbed: Path, kill_at: str | None, kill_after_s: float | None) -> Outcome:
        """Kill a run, resume it, and judge what came of it."""
        runs = self.folder / f"{self.mode}-{death}"
        arguments = [] if kill_at is None else ["--kill-at", kill_at]
        arguments += as_arguments(SETTINGS_OF_PHASE.get(death, ()))
        code, before = self.begin(runs, *arguments, kill_after_s=kill_after_s)
        died, after = code == -signal.SIGKILL, 0.0
        if died:
            code, after = self.resume(runs)
        what = f"exit code {code}" if code else self.fault(runs / self.recipe.name, undisturbed / self.recipe.name)
        if died and not what:
            shutil.rmtree(runs)
        return Outcome(self.mode, death, died, not what, round(before, 1), round(after, 1), what)

    def chained(self, deaths: list[str], undisturbed: Path, finish: bool, luck: random.Random) -> list[Outcome]:
        """One run that dies at each phase in turn, resumed in between; `finish` it at the end, and judge it.

        `random` is a moment drawn anew. A chained run that is there already is gone on with.
        """
        runs, outcomes = self.folder / f"{self.mode}-chained", list[Outcome]()
        for death in deaths:
            begun = (runs / self.recipe.name).exists()
            after_s = luck.uniform(*RANDOM_S) if death == RANDOM else None
            at = () if death == RANDOM else ("--kill-at", death)
            if begun:
                code, seconds = self.train(runs, "--resume", self.recipe.name, *at, kill_after_s=after_s)
            else:
                code, seconds = self.begin(runs, *at, kill_after_s=after_s)
            died = code == -signal.SIGKILL
            outcomes.append(Outcome(self.mode, f"chained {death}", died, died, round(seconds, 1), 0.0))
        if finish:
            code, seconds = self.resume(runs)
            what = f"exit code {code}" if code else self.fault(runs / self.recipe.name, undisturbed / self.recipe.name)
            outcomes.append(Outcome(self.mode, "chained, finished", True, not what, 0.0, round(seconds, 1), what))
        return outcomes

    def fault(self, run: Path, undisturbed: Path) -> str:
        """What is wrong with a run that was resumed; empty if nothing is."""
        from orchestration.books import books_fault

        if self.mode == "deterministic":
            if trained_groups(run) != trained_groups(undisturbed):
                return "other groups were trained"
            return "" if final_weights(run) == final_weights(undisturbed) else "the weights differ"
        return books_fault(self.recipe, run)


def final_weights(run: Path) -> str:
    """SHA-256 of the weights after the last stage."""
    stage = list(load_recipe(run / RECIPE_FILE).stages)[-1]
    return hashlib.sha256((run / "checkpoints" / stage / "model.safetensors").read_bytes()).hexdigest()


def trained_groups(run: Path) -> list[dict[str, Any]]:
    """The ledger; of versions the step, since lineages count deaths."""
    return [line | {"version": line["version"][1]} for line in read_trained_steps(run / "archive" / FILE)]


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("kill_and_resume", __doc__)
    parser.add_argument("--modes", type=listed(*MODES), default=",".join(MODES), help="default: both")
    parser.add_argument(
        "--phases", type=listed(*PHASES), default=",".join(PHASES), help=f"{', '.join(PHASES)}; or none"
    )
    parser.add_argument(
        "--random", type=at_least(0), default=5, help="deaths at random moments, in each mode (default 5)"
    )
    parser.add_argument(
        "--chained", metavar="PHASE:N|random,...", help="instead: one run that dies at each of these in turn"
    )
    parser.add_argument("--finish", action=argparse.BooleanOptionalAction, default=True, help="of a chained run")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the random moments")
    add_overrides(parser)
    parser.add_argument(
        "--folder", type=Path, help="where runs go, and stay; undisturbed ones there are used again (default: deleted)"
    )
    add_json(parser)
    return parser


def chain_of(text: str) -> list[str]:
    """The deaths of `--chained`. Raises `ValueError` for one that there is not."""
    deaths = text.split(",")
    for death in deaths:
        try:
            if death != RANDOM:
                kill_variable(death)
        except ValueError as error:
            raise ValueError(f"{error}; or {RANDOM}") from None
    return deaths


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if not options.modes:
        parser.error(f"argument --modes: name one of {', '.join(MODES)}")
    try:
        chain = None if options.chained is None else chain_of(options.chained)
    except ValueError as error:
        parser.error(f"argument --chained: {error}")
    with _folder(options.folder) as folder:
        every = [Runs(mode, folder, [*SETTINGS, *options.overrides]) for mode in options.modes]
        outcomes = [outcome for runs in every for outcome in of_mode(runs, options.phases, chain, options)]
        if options.json:
            print(json.dumps([asdict(each) for each in outcomes], indent=2))
        if not all(each.same and each.died for each in outcomes):
            raise Failed("not every run died and ended as it had to")
    return 0


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """Where the runs go: a temporary folder, if none is given, that stays only if something is wrong."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with scratch_folder("kill-and-resume-") as scratch:
        try:
            yield scratch
        except Failed:
            kept = Path(tempfile.mkdtemp(prefix="kill-and-resume-failed-"))
            shutil.copytree(scratch, kept, dirs_exist_ok=True)
            say(f"its logs and runs are in {kept}")
            raise


def of_mode(runs: Runs, phases: list[str], chain: list[str] | None, options: argparse.Namespace) -> list[Outcome]:
    undisturbed = runs.folder / f"{runs.mode}-undisturbed"
    took = undisturbed_run(runs, undisturbed)
    luck = random.Random(f"{options.seed}/{runs.mode}")
    if runs.mode == "deterministic":
        phases = [phase for phase in phases if phase not in SETTINGS_OF_PHASE]
    deaths: list[tuple[str, str | None, float | None]] = [(phase, PHASES[phase], None) for phase in phases]
    for number in range(options.random):
        deaths.append((f"random-{number}", None, luck.uniform(0.1, 0.95) * took))
    if chain is not None:
        outcomes = runs.chained(chain, undisturbed, options.finish, luck)
    else:
        outcomes = [runs.outcome(*death[:1], undisturbed, *death[1:]) for death in deaths]
    for found in outcomes:
        ended = "as undisturbed" if found.same else found.what
        print(
            f"{found.mode:14} {found.death:14} {'died' if found.died else 'LIVED'} after "
            f"{found.seconds_before:5.0f} s, resumed for {found.seconds_after:5.0f} s: {ended}",
            file=sys.stderr if options.json else sys.stdout,
            flush=True,
        )
    return outcomes


def undisturbed_run(runs: Runs, folder: Path) -> float:
    """Make it, unless it is there; returns the seconds that it took."""
    summary = folder / runs.recipe.name / "summary.json"
    if not summary.exists():
        code, _ = runs.begin(folder)
        if code:
            raise Failed(f"the undisturbed run ended with exit code {code}; see {folder.name}.log")
    seconds = json.loads(summary.read_text())["wall_seconds"]
    steps = trained_groups(summary.parent)
    say(f"{runs.mode}: undisturbed in {seconds:.0f} s, {len(steps)} steps of RL trained")
    if not steps:
        raise Failed("the undisturbed run has trained no group; raise stages.sft.steps")
    return seconds


if __name__ == "__main__":
    run(main)
