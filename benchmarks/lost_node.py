"""A node is lost in the middle of a training step: the step has to end, and it is reported how much longer it took.

    python -m benchmarks.lost_node                 # three raylets on this machine; some minutes on two idle cores
    python -m benchmarks.lost_node --replace       # another node joins at once: the lost actors can come back on it
    python -m benchmarks.lost_node --json

Real Ray, real vLLM, real nsjail. The head node holds the learner, the books and the rollout actors; each of two more
nodes holds half of the environments and one generator. After some steps in peace, one of these nodes is lost (SIGKILL
to its raylet, and its actors die with it) when half of a step's usual time has passed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.system.actor import ActorError
from actors.system.stage import ActorStartFailed
from benchmarks.command import QUICKSTART, Failed, add_json, add_overrides, parser_of, run, say
from orchestration.metrics import AllMetrics, JsonlMetrics
from orchestration.progress import Progress
from orchestration.recipe import Recipe
from orchestration.recipe_loading import load_recipe
from orchestration.scratch_folder import scratch_folder
from orchestration.terminal import run_interruptibly, told
from policies.run_progress import RunProgress
from policies.stages import ReinforcementOptions

if TYPE_CHECKING:
    from actors.system.local_ray import LocalRay

STAGE = "rl-1"
CALM_STEPS, LATER_STEPS = 3, 2
"""Steps before and after the one in which the node is lost. The first of all is not counted: caches are empty then."""
SETTINGS = (
    "name=lost-node",
    "environments.count=4",
    "environments.workers=1",
    "generators.count=2",
    "cluster.shared_files=true",  # the nodes are raylets of one machine
    "cluster.environments={resources={environment=1}, cpus=0}",
    "cluster.generators={resources={generator=1}, cpus=0, spread=true}",
    "evaluation.count=8",
    f"stages.{STAGE}.steps={CALM_STEPS + 1 + LATER_STEPS}",
)
PLACES = {"environment": 2.0, "generator": 1.0}
"""On each of the two nodes: as many as it is to hold, so that both are full."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a lost node cost. Times in seconds."""

    calm_step_s: float
    """Median of the steps in peace, but for the first."""
    disturbed_step_s: float
    """The step in which the node was lost."""
    longer_s: float
    ratio: float
    of_which_sync_s: float
    """In which the weights reached the generators, those that were lost awaited for a while."""
    later_steps_s: list[float]
    rollouts_asked: int
    rollouts_finished: int
    """In the disturbed step."""
    rollouts_dropped: int
    replaced: bool
    """Whether another node joined."""


class Striker:
    """A sink that has a node lost when the steps in peace are over and the next one is half through."""

    def __init__(self, ray: LocalRay, victim: str, replace: bool) -> None:
        self._ray, self._victim, self._replace = ray, victim, replace
        self.steps: list[dict[str, Any]] = []
        self.seen_enough = asyncio.Event()
        self.struck_after: int | None = None
        """Steps that were over when the node was lost."""
        self._blow: asyncio.Task[None] | None = None

    def write(self, kind: str, stage: str, step: int, **figures: Any) -> None:
        if (kind, stage) != ("step", STAGE):
            return
        self.steps.append(figures)
        say(f"step {step}: {figures['time_total_s']:.1f} s")
        if len(self.steps) == CALM_STEPS:
            self._blow = asyncio.get_running_loop().create_task(self._strike(figures["time_rollout_s"] / 2))
        if len(self.steps) == CALM_STEPS + 1 + LATER_STEPS:
            self.seen_enough.set()

    def rewind(self, progress: RunProgress) -> None:
        raise Failed(f"the learner died, which is not on the node that was lost; the run went back to {progress}")

    async def _strike(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.struck_after = len(self.steps)
        # In this thread: Ray's processes die with the thread that starts them.
        self._ray.kill_node(self._victim)
        say(f"a node is lost, {after_s:.1f} s into the step")
        if self._replace:
            self._ray.add_node(cpus=2, resources=PLACES)
            say("another one has joined")

    def close(self) -> None:
        if self._blow is not None:
            self._blow.cancel()

    def report(self, recipe: Recipe) -> Report:
        """What the steps say. Raises `Failed` if the node was not lost in the step that it was to be lost in."""
        if self.struck_after != CALM_STEPS or len(self.steps) <= CALM_STEPS:
            raise Failed(f"the node was lost after {self.struck_after} of {len(self.steps)} steps, not {CALM_STEPS}")
        options = recipe.stages[STAGE]
        assert isinstance(options, ReinforcementOptions)
        calm = statistics.median(step["time_total_s"] for step in self.steps[1:CALM_STEPS])
        hit = self.steps[CALM_STEPS]
        return Report(
            calm_step_s=calm,
            disturbed_step_s=hit["time_total_s"],
            longer_s=hit["time_total_s"] - calm,
            ratio=hit["time_total_s"] / calm,
            of_which_sync_s=hit["time_sync_s"],
            later_steps_s=[step["time_total_s"] for step in self.steps[CALM_STEPS + 1 :]],
            rollouts_asked=options.prompts * options.sampled,
            rollouts_finished=round(hit["rollouts"] + hit.get("void", 0.0)),
            rollouts_dropped=round(hit["dropped"]),
            replaced=self._replace,
        )


async def lose_a_node(recipe: Recipe, folder: Path, replace: bool) -> Report:
    """Train, lose a node on the way, and say what it cost. Whatever ends the training early is raised."""
    from actors.system.local_ray import LocalRay
    from orchestration.train import Training

    with LocalRay(cpus=2) as ray:
        recipe = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"address": ray.address})})
        victim, _ = [ray.add_node(cpus=2, resources=PLACES) for _ in range(2)]
        striker = Striker(ray, victim, replace)
        sink = AllMetrics(JsonlMetrics(folder / "metrics.jsonl"), striker)
        with Progress(stream=sys.stderr) as progress:
            training = asyncio.create_task(Training(recipe, folder, progress, sink).run())
            enough = asyncio.create_task(striker.seen_enough.wait())
            try:
                await asyncio.wait((training, enough), return_when=asyncio.FIRST_COMPLETED)
            finally:  # before its Ray ends, also after Ctrl-C
                enough.cancel()
                training.cancel()  # what comes after the last step is of no interest
                with contextlib.suppress(asyncio.CancelledError):
                    await training
        return striker.report(recipe)


def recipe_for(overrides: list[str]) -> Recipe:
    """The quickstart with one short stage of reinforcement."""
    recipe = load_recipe(QUICKSTART, [*SETTINGS, *overrides])
    return recipe.model_copy(update={"stages": {name: recipe.stages[name] for name in ("sft", STAGE)}})


def table(report: Report) -> str:
    """Both times side by side."""
    later = ", ".join(f"{each:.1f} s" for each in report.later_steps_s)
    titles = ("step in peace", "step with the loss", "longer by", "ratio", "of which sync", "steps after")
    times = (report.calm_step_s, report.disturbed_step_s, report.longer_s)
    row = (*(f"{each:.1f} s" for each in times), f"{report.ratio:.1f}", f"{report.of_which_sync_s:.1f} s", later)
    lines = [" | ".join(cells) for cells in (titles, ["---"] * len(titles), row)]
    return "\n".join(f"| {line} |" for line in lines) + (
        f"\nrollouts of that step: {report.rollouts_asked} asked for, {report.rollouts_finished} finished, "
        f"{report.rollouts_dropped} dropped; the node was {'' if report.replaced else 'not '}replaced"
    )


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("lost_node", __doc__)
    parser.add_argument("--replace", action="store_true", help="have another node join when one is lost")
    add_overrides(parser)
    parser.add_argument("--keep", type=Path, help="the run's folder, to look at; by default it is deleted")
    add_json(parser)
    return parser


def main() -> int:
    options = arguments().parse_args()
    recipe = recipe_for(options.overrides)
    with scratch_folder("greenroom-lost-node-") as scratch:
        folder: Path = scratch / recipe.name if options.keep is None else options.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with told("the run failed", ActorError, ActorStartFailed):
            report = run_interruptibly(lose_a_node(recipe, folder, options.replace))
    print(json.dumps(asdict(report)) if options.json else table(report))
    accounted = report.rollouts_finished + report.rollouts_dropped
    return 0 if accounted == report.rollouts_asked else 1


if __name__ == "__main__":
    run(main)
