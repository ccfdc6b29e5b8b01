"""A few trajectories of a run, as text, for its report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from actors.storage.reader import read_archive
from actors.tokenizer import PromptOptions, load_chat_format
from orchestration.run_folder import write_json
from policies import tokens
from policies.chat_format import ChatFormat
from policies.trajectory import Trajectory


def write_examples(folder: Path, model: Path, prompt: PromptOptions) -> None:
    """Write `examples.json`: of each evaluation a right and a wrong answer, those with most tool errors first."""
    chat = load_chat_format(str(model), prompt)
    chosen = choose(read_archive(folder / "archive"))
    write_json(folder / "examples.json", [_as_text(trajectory, chat) for trajectory in chosen])


def choose(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """One right and one wrong trajectory of each evaluation, in the order of the run."""
    chosen: dict[tuple[str, bool], Trajectory] = {}
    for trajectory in trajectories:
        if not trajectory.stage.startswith("evaluation-"):
            continue
        place = (trajectory.stage, trajectory.verdict.correct)
        if place not in chosen or trajectory.tool_errors > chosen[place].tool_errors:
            chosen[place] = trajectory
    return list(chosen.values())


def _as_text(trajectory: Trajectory, chat: ChatFormat) -> dict[str, Any]:
    state = trajectory.stage.removeprefix("evaluation-")
    return {
        "title": (
            f"after {state}: {trajectory.verdict.reason}, "
            f"{trajectory.tool_errors} of {len(trajectory.calls)} calls failed"
        ),
        "problem": trajectory.problem.question,
        "gold": trajectory.problem.gold,
        "correct": trajectory.verdict.correct,
        "parts": [{"kind": span.kind, "text": chat.decode(tokens.unpack_ids(span.ids))} for span in trajectory.spans],
    }
