"""A training run with all that its recipe asks for: the run that is gone on with, the sinks, the progress display."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from actors.storage.disk import writing
from orchestration.metrics import METRICS_FILE, AllMetrics, JsonlMetrics, TensorBoardMetrics
from orchestration.progress import Progress, RunTable
from orchestration.recipe import Recipe
from orchestration.resume import Beginning, take_up
from orchestration.sinks import further_sinks
from orchestration.train import Beside, Training


async def run_training(
    recipe: Recipe,
    folder: Path,
    *,
    resumed: bool = False,
    kill_at: str | None = None,
    beside: Beside | None = None,
    shown_on: TextIO | None = None,
) -> dict[str, Any]:
    """Train in `folder`, which the caller holds, with all of the recipe's sinks; returns the summary.

    Progress is shown on `shown_on`, or on standard output.

    Raises what ended the run early.
    """
    steps = {name: stage.steps for name, stage in recipe.stages.items()}
    with writing(folder):
        beginning = take_up(folder) if resumed else Beginning()
        sink = AllMetrics(
            JsonlMetrics(folder / METRICS_FILE),
            TensorBoardMetrics(folder / "tensorboard", steps),
            *further_sinks(recipe, folder),
        )
    with Progress(shown_on) as progress:
        progress.note(f"run folder: {folder}")
        summary = await Training(recipe, folder, progress, sink, beginning, kill_at, beside).run()
        RunTable(summary["stages"]).show(progress)
        progress.note(f"done in {summary['wall_seconds']:.0f} s; report: {folder / 'report.html'}")
    return summary
