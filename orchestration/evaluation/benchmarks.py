"""The benchmarks: where their problems come from, how they are put and graded, and the settings they go with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from actors.tokenizer import PromptOptions
from orchestration.data.problems import load_problems
from orchestration.data.rows import DataError, check_columns, read_rows
from orchestration.recipe import RecipeError
from policies.data_options import DatasetOptions
from policies.graders import bfcl, ifeval
from policies.trajectory import Problem

Style = Literal["reasoning", "plain"]


class Settings(NamedTuple):
    """How a benchmark is sampled; the defaults of mathematics are the paper's (arXiv 2508.20722)."""

    samples: int = 16
    temperature: float = 0.6
    max_turns: int = 30
    max_tokens: int = 30_000


class Graded(NamedTuple):
    """What a rule grader says of one response."""

    correct: bool
    reason: str
    figures: dict[str, float] = {}  # noqa: RUF012  (a NamedTuple's default is never changed)


type Grader = Callable[[str], Graded]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark, loaded."""

    name: str
    style: Style
    """`reasoning`: the project's prompts, with the Python tool, judged by the answer. `plain`: the question as it is,
    one turn, judged by `graders`."""
    settings: Settings
    problems: list[Problem]
    graders: Mapping[str, Grader] = field(default_factory=dict)
    """By problem id."""
    baseline: Mapping[str, str] = field(default_factory=dict)
    """By problem id: the answer that a judge compares with; empty where no judge is needed."""


PROMPTS: dict[Style, PromptOptions] = {
    "reasoning": PromptOptions(),
    "plain": PromptOptions(instructions=False, opening=""),
}
MATHEMATICS = ("aime24", "aime25", "hmmt25", "math500", "gpqa", "gsm8k")
SINGLE = Settings(samples=1, temperature=0.0, max_turns=1, max_tokens=4096)
ARENA_HARD = "arena-hard"
NAMES = (*MATHEMATICS, "ifeval", "bfcl", ARENA_HARD)


def load_benchmark(name: str, path: str, limit: int | None) -> Benchmark:
    """A benchmark by name.

    Args:
        path: where its data is; empty for the hub's.
        limit: only so many problems, from the start; of bfcl, of each category.

    Raises `RecipeError` for an unknown name and for one that can't be graded here, `DataError` for data that can't be
    used.
    """
    if name in MATHEMATICS:
        split = "test" if name == "gsm8k" else ""
        found = load_problems(DatasetOptions(name=name, path=path, split=split, limit=limit))
        return Benchmark(name, "reasoning", Settings(), found.problems)
    if name == "ifeval":
        return _ifeval(path or "google/IFEval", limit)
    if name == "bfcl":
        if not path:
            raise RecipeError(
                "bfcl's files are not on the hub in a form that says which answers are allowed: give the folder "
                "bfcl_eval/data of a checkout of ShishirPatil/gorilla with --data bfcl=FOLDER"
            )
        return _bfcl(Path(path), limit)
    if name == ARENA_HARD:
        if not path:
            raise RecipeError(
                "arena-hard needs its questions and a baseline's answers: give the folder data/arena-hard-v0.1 of a "
                "checkout of lmarena/arena-hard-auto with --data arena-hard=FOLDER"
            )
        return _arena_hard(Path(path), limit)
    raise RecipeError(f"no benchmark is called {name!r}; there are {', '.join(NAMES)}")


# -- IFEval


def _ifeval(source: str, limit: int | None) -> Benchmark:
    problems, graders = [], {}
    for located in read_rows(source):
        check_columns(located, ("key", "prompt", "instruction_id_list", "kwargs"))
        row = located.row
        problem = Problem(
            id=f"ifeval/{row['key']}",
            question=row["prompt"],
            gold=", ".join(row["instruction_id_list"]),
            family="ifeval",
        )
        if problem.id in graders:
            raise DataError(f"{located.where}: key {row['key']} comes again; keys must be unique")
        problems.append(problem)
        graders[problem.id] = _ifeval_grader(row["instruction_id_list"], row["kwargs"])
    return Benchmark("ifeval", "plain", SINGLE, problems[:limit], graders)


def _ifeval_grader(instructions: list[str], arguments: list[dict[str, Any]]) -> Grader:
    def grade(response: str) -> Graded:
        followed = ifeval.grade(response, instructions, arguments, detect_language)
        missed = [name for name, held in zip(instructions, followed.strict, strict=True) if not held]
        return Graded(
            all(followed.strict),
            "does not follow " + ", ".join(missed) if missed else "",
            {
                "prompt_loose": float(all(followed.loose)),
                "instruction_strict": sum(followed.strict) / len(followed.strict),
                "instruction_loose": sum(followed.loose) / len(followed.loose),
            },
        )

    return grade


def detect_language(text: str) -> str:
    """The code of a text's language, `?` where it has none; the same text always gets the same."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0
    try:
        return detect(text)
    except LangDetectException:
        return "?"


# -- BFCL

BFCL_CATEGORIES = (
    "simple",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
BFCL_PROMPT = (
    "You may call the functions below, given as JSON. Answer with calls only, each of them as\n<tool_call>\n"
    '{{"name": "the function", "arguments": {{"argument": "value"}}}}\n</tool_call>\n'
    "If no function fits the request, or a value that is needed is not given, say so and call none.\n\n"
    "<tools>\n{tools}\n</tools>\n\n{question}"
)


def _bfcl(folder: Path, limit: int | None) -> Benchmark:
    problems, graders = [], {}
    for category in BFCL_CATEGORIES:
        path = folder / f"BFCL_v3_{category}.json"
        if not path.is_file():
            continue
        truth = {} if category.endswith("relevance") else _bfcl_truth(folder / "possible_answer" / path.name)
        taken = 0
        for located in read_rows(str(path)):
            check_columns(located, ("id", "question", "function"))
            row = located.row
            if taken == limit:
                break
            taken += 1
            if truth and row["id"] not in truth:
                raise DataError(f"{located.where}: id {row['id']!r} has no possible answer")
            problem = _bfcl_problem(row, category)
            problems.append(problem)
            graders[problem.id] = _bfcl_grader(row["function"], truth.get(row["id"]), category)
    if not problems:
        raise DataError(f"{folder} holds no BFCL_v3_CATEGORY.json; give the folder bfcl_eval/data of gorilla")
    return Benchmark("bfcl", "plain", SINGLE, problems, graders)


def _bfcl_truth(path: Path) -> dict[str, list[dict[str, Any]]]:
    truth = {}
    for located in read_rows(str(path)):
        check_columns(located, ("id", "ground_truth"))
        truth[located.row["id"]] = located.row["ground_truth"]
    return truth


def _bfcl_problem(row: Mapping[str, Any], category: str) -> Problem:
    turn = row["question"][0]
    question = "\n\n".join(message["content"] for message in turn)
    tools = "\n".join(json.dumps(function) for function in row["function"])
    return Problem(
        id=f"bfcl/{row['id']}",
        question=BFCL_PROMPT.format(tools=tools, question=question),
        gold="calls",
        family=category,
    )


def _bfcl_grader(functions: list[Any], truth: list[dict[str, Any]] | None, category: str) -> Grader:
    def grade(response: str) -> Graded:
        graded = bfcl.grade(response, functions, truth, category)
        return Graded(graded.correct, graded.reason)

    return grade


# -- Arena-Hard

ARENA_HARD_BASELINE = "gpt-4-0314"
"""Whose answers the benchmark's authors compare with (arXiv 2406.11939)."""


def _arena_hard(folder: Path, limit: int | None) -> Benchmark:
    answers = folder / "model_answer" / f"{ARENA_HARD_BASELINE}.jsonl"
    baseline = {}
    for located in read_rows(str(answers)):
        check_columns(located, ("question_id", "choices"))
        baseline[located.row["question_id"]] = _first_turn(located.row["choices"][0]["turns"], located.where)
    problems: list[Problem] = []
    for located in read_rows(str(folder / "question.jsonl")):
        check_columns(located, ("question_id", "turns"))
        row = located.row
        if row["question_id"] not in baseline:
            raise DataError(f"{located.where}: {ARENA_HARD_BASELINE} has no answer to {row['question_id']!r}")
        problem = Problem(
            id=f"{ARENA_HARD}/{row['question_id']}",
            question=_first_turn(row["turns"], located.where),
            gold=f"better than {ARENA_HARD_BASELINE}",
            family=ARENA_HARD,
        )
        if any(problem.id == other.id for other in problems):
            raise DataError(f"{located.where}: question_id {row['question_id']} comes again; they must be unique")
        problems.append(problem)
    return Benchmark(
        ARENA_HARD,
        "plain",
        SINGLE,
        problems[:limit],
        baseline={f"{ARENA_HARD}/{name}": answer for name, answer in baseline.items()},
    )


def _first_turn(turns: Any, where: str) -> str:
    """The text of a dialogue's only turn. Raises `DataError` for another shape."""
    match turns:
        case [{"content": str(text)}]:
            return text
        case _:
            raise DataError(f"{where}: 'turns' is not one turn with a 'content'; only Arena-Hard v0.1 is read")
