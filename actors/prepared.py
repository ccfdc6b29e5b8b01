"""Data as a run's start has prepared it in the run's folder: JSON lines of problems, or of dialogues to imitate.

Whatever could be wrong with a user's files has been found before these were written (`orchestration.data`).
"""

from __future__ import annotations

from pathlib import Path

from policies.chat_data import ChatSample
from policies.curriculum import ProblemOptions, ProblemStream
from policies.trajectory import Problem


def open_stream(options: ProblemOptions, *, run_seed: int, held_out: bool) -> ProblemStream:
    """The stream of problems that options describe."""
    problems = () if options.dataset is None else read_problems(Path(options.dataset.path))
    return ProblemStream(options, run_seed=run_seed, held_out=held_out, problems=problems)


def read_problems(path: Path) -> list[Problem]:
    """The problems of a prepared file."""
    with path.open(encoding="utf-8") as lines:
        return [Problem.model_validate_json(line) for line in lines]


def read_chats(path: Path) -> list[ChatSample]:
    """The dialogues of a prepared file."""
    with path.open(encoding="utf-8") as lines:
        return [ChatSample.model_validate_json(line) for line in lines]
