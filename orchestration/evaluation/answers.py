"""What an evaluation keeps of each answer, and the file that makes it resumable.

Invariants:
- an answer is written and flushed when it is there; a file cut off in the middle of a line loses that answer only;
- one folder holds answers of one model, and of each benchmark to one set of problems under one set of settings: others
  are refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from env.tool_call import PYTHON_TOOL
from orchestration.evaluation.benchmarks import Benchmark, Settings
from orchestration.recipe import RecipeError
from orchestration.run_folder import write_json
from policies.dialogue import DialogueLimits
from policies.trajectory import Finish, Problem, Record

ANSWERS_FILE, SETTINGS_FILE = "answers.jsonl", "settings.json"

UNCOUNTED = "turns_without_token_count"
"""The figure of an answer whose server does not say how many tokens it wrote: the share of its turns."""

type AnswerKey = tuple[str, str, int]
"""(benchmark, problem, sample)."""


class Part(Record):
    """A piece of a dialogue."""

    who: Literal["model", "tool"]
    text: str


class Answer(Record):
    """One sample of one problem."""

    benchmark: str
    problem: str
    """Its id."""
    family: str
    question: str
    gold: str
    sample: int
    parts: tuple[Part, ...]
    extracted: str = ""
    correct: bool
    reason: str
    finish: Finish | Literal["failed"]
    """As of trajectories; `failed`: it could not be played, counts as wrong, and is played again the next time."""
    response_tokens: int
    """Of the whole response, tools included; over HTTP those that the model wrote."""
    turns: int
    calls: int
    tool_errors: int
    figures: dict[str, float] = Field(default_factory=dict)
    score: Annotated[float, Field(ge=0, le=1)] | None = None
    """What a judge gives, in the place of right or wrong; None where there is no judge, or not yet."""

    @property
    def credit(self) -> float:
        """What it counts for: the score, or 1 if it is right."""
        return float(self.correct) if self.score is None else self.score

    @property
    def key(self) -> AnswerKey:
        return (self.benchmark, self.problem, self.sample)

    @property
    def truncated(self) -> bool:
        return self.finish in ("length", "turns")


class Wanted(NamedTuple):
    """A sample that is to be played."""

    benchmark: Benchmark
    settings: Settings
    problem: Problem
    sample: int

    @property
    def key(self) -> AnswerKey:
        return (self.benchmark.name, self.problem.id, self.sample)

    @property
    def id(self) -> str:
        """Unique; what its random streams are named by."""
        return f"{self.benchmark.name}/{self.problem.id}/{self.sample}"

    @property
    def limits(self) -> DialogueLimits:
        return DialogueLimits(
            max_tokens=self.settings.max_tokens,
            max_turn_tokens=self.settings.max_tokens,
            max_turns=self.settings.max_turns,
            tools=(PYTHON_TOOL,) if self.benchmark.style == "reasoning" else (),
        )

    def answer(self, end_of_turn: str = "", **played: Any) -> Answer:
        """What came of it: `played` holds the fields of `Answer` that are not known before.

        A rule grader's verdict takes the place of the dialogue's own. Benchmarks with graders have one turn: that its
        text holds what looks like a call does not cut it off. Where nothing was said there is nothing to grade: a
        prompt without room for an answer is no model's decision to call no function.
        """
        asked = {
            "benchmark": self.benchmark.name,
            "problem": self.problem.id,
            "family": self.problem.family,
            "question": self.problem.question,
            "gold": self.problem.gold,
            "sample": self.sample,
        }
        answer = Answer.model_validate(asked | played)
        if answer.finish == "failed" or not answer.parts or self.problem.id not in self.benchmark.graders:
            return answer
        verdict = self.benchmark.graders[self.problem.id](answer.parts[0].text.removesuffix(end_of_turn))
        return answer.model_copy(
            update={
                "correct": verdict.correct,
                "reason": verdict.reason or "right",
                "figures": answer.figures | verdict.figures,
                "extracted": "",
                "finish": "length" if answer.finish == "length" else "answered",
                "calls": 0,
                "tool_errors": 0,
            }
        )


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file that grows line by line; what was being written when that was cut off is taken out of it."""
    if not path.is_file():
        return []
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(whole) + 1 if whole else 0)
    return whole.splitlines()


def why_failed(answers: Iterable[Answer]) -> Counter[str]:
    """How many answers failed, by reason."""
    return Counter(answer.reason for answer in answers if answer.finish == "failed")


class AnswerFile:
    """The answers of an evaluation, on disk and in memory.

    Raises `RecipeError` if the folder holds answers under other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / ANSWERS_FILE
        settings_path = folder / SETTINGS_FILE
        stored = [Answer.model_validate_json(line) for line in whole_lines(self._path)]
        if settings_path.is_file() and stored:
            before = json.loads(settings_path.read_text())
            changed = [name for name in settings if name in before and before[name] != settings[name]]
            if changed:
                told = ", ".join(f"{name}: {before[name]!r}, now {settings[name]!r}" for name in changed)
                raise RecipeError(f"{folder} holds an evaluation with other settings ({told}); give another --out")
            settings = before | settings
        write_json(settings_path, settings)
        self.answers = {answer.key: answer for answer in stored}  # of one that failed before, the last

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        assert not self._is_there(answer.key), f"{answer.key} is answered twice"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(answer.model_dump_json() + "\n")
        self.answers[answer.key] = answer

    def missing(self, chosen: Sequence[tuple[Benchmark, Settings]]) -> list[Wanted]:
        """The samples of benchmarks that are not there yet, or failed.

        Raises `RecipeError` if what is there answers another problem of the same id: the data has changed.
        """
        wanted = [
            Wanted(benchmark, settings, problem, sample)
            for benchmark, settings in chosen
            for problem in benchmark.problems
            for sample in range(settings.samples)
        ]
        for each in wanted:
            there, problem = self.answers.get(each.key), each.problem
            if there is not None and (there.question, there.gold) != (problem.question, problem.gold):
                raise RecipeError(
                    f"{self._path} answers another problem {problem.id} than the data has now; give another --out"
                )
        return [each for each in wanted if not self._is_there(each.key)]

    def _is_there(self, key: AnswerKey) -> bool:
        return key in self.answers and self.answers[key].finish != "failed"
