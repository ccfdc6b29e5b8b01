"""What a run's report is made of, read from its folder.

Invariant: any folder can be read; what is absent or broken is named, in a sentence for the report's reader.

What is read: `recipe.toml` (the run's name and seed), `metrics.jsonl`, `summary.json`, `analysis.json` if it is there
(`orchestration.analysis_report`), and `examples.json` if it is there: a list of
`{"title", "problem", "gold", "correct": bool, "parts": [{"kind": "prompt"|"model"|"tool", "text"}]}`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestration.analysis_report import AnalysisUnreadable, read_analysis
from orchestration.archive.analysis import Analysis
from orchestration.metrics import METRICS_FILE, MetricsUnreadable, Record, read_metrics, stages_from_evaluations
from orchestration.run_folder import RECIPE_FILE


@dataclass
class RunFolder:
    """What could be read of a run, and what could not."""

    path: Path
    recipe: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    analysis: Analysis | None = None
    missing: list[str] = field(default_factory=list)
    """Sentences for the reader."""

    @property
    def name(self) -> str:
        return str(self.summary.get("name") or self.recipe.get("name") or self.path.resolve().name)

    @property
    def stages(self) -> list[Mapping[str, Any]]:
        """Rows of the stage table: the summary's, else what the evaluations say."""
        told = [row for row in as_list(self.summary.get("stages")) if isinstance(row, Mapping)]
        return told or list(stages_from_evaluations(self.records))


def read_run(folder: Path) -> RunFolder:
    """Read what there is; whatever is absent or broken is named in `missing`.

    Raises `NotADirectoryError` if there is no such folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a run's folder; give the folder that holds {METRICS_FILE}")
    run = RunFolder(folder)
    run.recipe = _read(run, RECIPE_FILE, tomllib.loads, dict, "the recipe is not shown")
    run.summary = _read(
        run, "summary.json", json.loads, dict, "the run has not come to its end; figures are those of its metrics"
    )
    if (folder / "examples.json").is_file():
        found = _read(run, "examples.json", json.loads, list, "no trajectories are shown")
        run.examples = [example for example in found if isinstance(example, dict)]
    try:
        run.analysis = read_analysis(folder)
    except AnalysisUnreadable as error:
        run.missing.append(str(error))
    try:
        run.records = read_metrics(folder / METRICS_FILE)
        if not run.records:
            run.missing.append(f"{METRICS_FILE} is absent or empty: the run recorded nothing")
    except MetricsUnreadable as error:
        run.missing.append(f"{error}: no plots can be drawn")
    return run


def _read(run: RunFolder, name: str, parse: Any, kind: type, otherwise: str) -> Any:
    """The parsed content of a file of the run; an empty `kind` and a sentence in `missing` if that fails."""
    path = run.path / name
    if not path.is_file():
        run.missing.append(f"{name} is absent: {otherwise}")
        return kind()
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:  # JSON's and TOML's errors are ValueErrors
        run.missing.append(f"{name} can't be read ({error}): {otherwise}")
    else:
        if isinstance(content, kind):
            return content
        run.missing.append(f"{name} does not hold a {kind.__name__}: {otherwise}")
    return kind()


def as_list(value: Any) -> list[Any]:
    """A value that may be anything, as a list; empty if it is none."""
    return value if isinstance(value, list) else []
