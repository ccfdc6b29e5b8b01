"""Do the books of a run balance? What its archive and its ledger say was rolled out and trained.

(For recipes without dynamic sampling.)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from actors.storage.reader import Archive
from actors.storage.trained_steps import FILE, read_trained_steps
from orchestration.recipe import Recipe
from policies.curriculum import ProblemStream
from policies.stages import ReinforcementOptions


def books_fault(recipe: Recipe, run: Path) -> str:
    """What was trained twice, or skipped; empty if nothing was."""
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
        if not isinstance(stage, ReinforcementOptions):
            continue
        stream = ProblemStream(stage.problems, run_seed=recipe.seed, held_out=False)
        for position in range(stage.steps * stage.prompts):
            step, group = divmod(position, stage.prompts)
            due = {(sample, stream.problem(position).id) for sample in range(stage.sampled)}
            if rollouts.get(f"{name}/{step}/{group}") != due:
                return f"group {name}/{step}/{group} was not rolled out in full, from the problem that was due"
    return ""
