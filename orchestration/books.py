"""Do the books of a run that came to its end balance? What archive and ledger say was rolled out and trained."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from actors.storage.reader import Archive
from actors.storage.trained_steps import FILE, read_trained_steps
from orchestration.data.prepare import training_stream
from orchestration.metrics import METRICS_FILE, figure, of_kind, read_metrics
from orchestration.recipe import Recipe
from policies.stages import ReinforcementOptions


def books_fault(recipe: Recipe, run: Path) -> str:
    """What was trained twice, or skipped; empty if nothing was.

    Which problems were due is not known of stages with dynamic sampling: how many a step poses follows from what came
    of those before.
    """
    lines = read_trained_steps(run / "archive" / FILE)
    repeated = [key for key, times in Counter((line["stage"], line["step"]) for line in lines).items() if times > 1]
    if repeated:
        return f"trained twice: {repeated}"
    groups = Counter(group["group"] for line in lines for group in line["groups"])
    if twice := [group for group, times in groups.items() if times > 1]:
        return f"groups that were learned from twice: {', '.join(twice)}"
    versions = [line["version"][1] for line in lines]
    if versions != list(range(versions[0], versions[0] + len(versions))) if versions else False:
        return f"versions are not one after another: {versions}"
    rollouts: dict[str, set[tuple[int, str]]] = {}
    for row in Archive(run / "archive").rows:
        rollouts.setdefault(row.group, set()).add((row.sample, row.problem))
    for name, stage in recipe.stages.items():
        if not isinstance(stage, ReinforcementOptions) or stage.dynamic_sampling is not None:
            continue
        stream = training_stream(run, name, stage.problems, recipe.seed)
        for position in range(_steps_done(run, name, stage) * stage.prompts):
            step, group = divmod(position, stage.prompts)
            due = {(sample, stream.problem(position).id) for sample in range(stage.sampled)}
            if rollouts.get(f"{name}/{step}/{group}") != due:
                return f"group {name}/{step}/{group} was not rolled out in full, from the problem that was due"
    return ""


def _steps_done(run: Path, name: str, stage: ReinforcementOptions) -> int:
    """Of a stage that is over: all, unless a rule may have ended it before the last one."""
    if stage.move_on is None:
        return stage.steps
    steps = [record for record in of_kind(read_metrics(run / METRICS_FILE), "step") if record["stage"] == name]
    return max((round(figure(step, "step") or 0) for step in steps), default=0)
