"""The difficulty filter: how often a model solves each problem, and which problems are worth training on.

A problem that every rollout solves, or none, gives a group without signal: all its advantages are zero. The paper drops
those that are solved 8 times of 8 before its third stage.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from orchestration.evaluation.answers import AnswerFile, why_failed
from orchestration.evaluation.benchmarks import Benchmark
from orchestration.evaluation.play import LocalModel, check_settings, play_missing
from orchestration.recipe import RecipeError
from orchestration.run_folder import write_whole


def rate(benchmark: Benchmark, folder: Path, model: LocalModel, seed: int) -> dict[str, int]:
    """How many rollouts solved each problem, by id. Answers are kept in `folder`: an interrupted filter goes on.

    Raises `RecipeError` for settings that the model can't do, and where rollouts failed: they say nothing of a problem.
    """
    settings = benchmark.settings
    check_settings(benchmark.name, settings, model)
    file = AnswerFile(folder, {"model": str(model), "seed": seed, benchmark.name: settings._asdict()})
    play_missing([(benchmark, settings)], file, folder, model, seed)
    if failed := why_failed(file.answers.values()):
        (reason, _), *_ = failed.most_common(1)
        raise RecipeError(f"{failed.total()} rollouts failed; the same command plays them again. The first: {reason}")
    solved = {problem.id: 0 for problem in benchmark.problems}
    for answer in file.answers.values():
        if answer.problem in solved:
            solved[answer.problem] += answer.correct
    return solved


def write_verdicts(path: Path, solved: dict[str, int], rollouts: int, *, drop_never: bool) -> dict[str, int]:
    """Write a verdict on each problem; returns how many there are of each kind."""
    counts: Counter[str] = Counter(problems=len(solved), kept=0, always_solved=0, never_solved=0)
    lines = []
    for problem, times in solved.items():
        kept = times < rollouts and not (drop_never and times == 0)
        counts["kept"] += kept
        counts["always_solved"] += times == rollouts
        counts["never_solved"] += times == 0
        lines.append(json.dumps({"id": problem, "solved": times, "rollouts": rollouts, "kept": kept}) + "\n")
    write_whole(path, "".join(lines))
    return dict(counts)
