"""Public sets of problems: how a row of each becomes a `Problem`. Pure; reading files is `orchestration.data`'s.

A row that can't be used raises `RowUnusable`; one that is left out on purpose gives None. Shapes are those of the
sets' pages on the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from policies.trajectory import Problem

Row = Mapping[str, Any]


class RowUnusable(ValueError):
    """A row lacks a column, or holds something that can't be what it should; who reads the file adds where."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """One data set."""

    name: str
    hub: str
    """Id on the Hugging Face hub; empty where there is none."""
    columns: tuple[str, ...]
    """Which a row must have."""
    convert: Callable[[Row, random.Random], Problem | None]
    """The generator is seeded by the options' seed and the number of the row."""
    configs: tuple[str, ...] = ()
    """Configurations on the hub that together are the set."""
    split: str = "train"
    repeats: Literal["refuse", "merge"] = "refuse"
    """What a question that comes again means: a mistake in the file, or the set's way (then the first one counts, and
    questions with two different golds are left out)."""
    about: str = field(default="", compare=False)


def text(row: Row, column: str) -> str:
    """The text in a column; a number counts as its text. Raises `RowUnusable` if it is empty or neither.

    A number that is not finite is what libraries write where there was none.
    """
    value = row.get(column)
    if isinstance(value, float) and not math.isfinite(value):
        raise RowUnusable(f"column {column!r} holds {value}, which is no number; give text, or leave the row out")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowUnusable(f"column {column!r} holds {value!r:.80}; it must be text")
    if not (stripped := str(value).strip()):
        raise RowUnusable(f"column {column!r} is empty")
    return stripped


def as_integer(gold: str) -> str | None:
    """The integer that a gold is, in plain digits; None if it is none. Degrees, commas and `.0` may stand with it."""
    plain = re.sub(r"\\circ|[\^{}°$\s,]|\\[!,; ]", "", gold)
    found = re.fullmatch(r"([+-]?\d+)(?:\.0*)?", plain)
    return None if found is None else str(int(found[1]))


def _problem(name: str, key: object, question: str, gold: str, family: str = "") -> Problem:
    """A problem; `key` is what the set names it by, or None where the set has no names: then the question makes one."""
    return Problem(
        id=f"{name}/{_key_of(question) if key is None else key}", question=question, gold=gold, family=family or name
    )


def _key_of(question: str) -> str:
    return hashlib.blake2b(question.encode(), digest_size=8).hexdigest()


def _plain(row: Row, _: random.Random) -> Problem:
    question = text(row, "question")
    return _problem("plain", row.get("id"), question, text(row, "answer"), str(row.get("family") or ""))


def gsm8k_gold(solution: str) -> str:
    """The integer at the end of one of GSM8K's solutions. Raises `RowUnusable`."""
    marked, gold = solution.rpartition("####")[1:]
    integer = as_integer(gold)
    if not marked or integer is None:
        raise RowUnusable(f"column 'answer' does not end in '#### <integer>': {solution[-60:]!r}")
    return integer


def _gsm8k(row: Row, _: random.Random) -> Problem:
    return _problem("gsm8k", row.get("id"), text(row, "question"), gsm8k_gold(text(row, "answer")))


_DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
_DAPO_AFTER = re.compile(r"\n\nRemember to put your answer on its own line after \"Answer:\"\.?\s*\Z")


def _dapo(row: Row, _: random.Random) -> Problem:
    prompt, reward = row["prompt"], row["reward_model"]
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[-1], Mapping):
        raise RowUnusable("column 'prompt' is not a list of messages; for plain text use dapo-17k-processed")
    if not isinstance(reward, Mapping):
        raise RowUnusable("column 'reward_model' is not an object with a ground_truth")
    asked = text(prompt[-1], "content")
    question = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", asked)).strip()
    extra = row.get("extra_info")
    key = extra.get("index") if isinstance(extra, Mapping) else None
    return _problem("dapo-17k", key, question, text(reward, "ground_truth"))


def _dapo_processed(row: Row, _: random.Random) -> Problem:
    question = text(row, "prompt")
    return _problem("dapo-17k", None, question, text(row, "solution"))


def _open_math_reasoning(row: Row, _: random.Random) -> Problem | None:
    if row["problem_type"] != "has_answer_extracted":
        return None  # proofs, and problems whose answer is a model's majority vote
    question = text(row, "problem")
    return _problem("open-math-reasoning", None, question, text(row, "expected_answer"))


def _math_500(row: Row, _: random.Random) -> Problem:
    return _problem(
        "math500", text(row, "unique_id"), text(row, "problem"), text(row, "answer"), text(row, "subject").lower()
    )


def _aime(name: str, question_column: str) -> Callable[[Row, random.Random], Problem]:
    def convert(row: Row, _: random.Random) -> Problem:
        question, gold = text(row, question_column), text(row, "answer")
        integer = as_integer(gold)
        if integer is None or not 0 <= int(integer) <= 999:
            raise RowUnusable(f"answer {gold!r} is no integer from 0 to 999, as those of AIME are")
        return _problem(name, row.get("id"), question, integer)

    return convert


def _hmmt(row: Row, _: random.Random) -> Problem:
    return _problem("hmmt25", text(row, "problem_idx"), text(row, "problem"), text(row, "answer"))


GPQA_COLUMNS = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _gpqa(row: Row, rng: random.Random) -> Problem:
    question, *choices = [text(row, column) for column in GPQA_COLUMNS]
    if len(set(choices)) < len(choices):
        raise RowUnusable(f"two choices are the same: {choices!r:.120}")
    right = choices[0]
    rng.shuffle(choices)
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    asked = f"{question}\n\n{listed}\n\nGive the letter of the right choice."
    return _problem("gpqa", row.get("Record ID") or _key_of(question), asked, "ABCD"[choices.index(right)])


_SETS = (
    ProblemSet("plain", "", ("question", "answer"), _plain, about="columns question, answer and, if there is one, id"),
    ProblemSet("gsm8k", "openai/gsm8k", ("question", "answer"), _gsm8k, ("main",), about="grade-school word problems"),
    ProblemSet(
        "dapo-17k",
        "BytedTsinghua-SIA/DAPO-Math-17k",
        ("prompt", "reward_model"),
        _dapo,
        repeats="merge",
        about="competition problems; the file repeats each about a hundred times",
    ),
    ProblemSet(
        "dapo-17k-processed",
        "open-r1/DAPO-Math-17k-Processed",
        ("prompt", "solution"),
        _dapo_processed,
        ("all",),
        repeats="merge",
        about="the same, each once",
    ),
    ProblemSet(
        "open-math-reasoning",
        "nvidia/OpenMathReasoning",
        ("problem", "expected_answer", "problem_type"),
        _open_math_reasoning,
        split="cot",
        repeats="merge",
        about="AoPS problems, with several solutions each",
    ),
    ProblemSet(
        "math500",
        "HuggingFaceH4/MATH-500",
        ("problem", "answer", "subject", "unique_id"),
        _math_500,
        split="test",
        about="500 problems of MATH",
    ),
    ProblemSet("aime24", "HuggingFaceH4/aime_2024", ("problem", "answer"), _aime("aime24", "problem"), about="AIME"),
    ProblemSet(
        "aime25",
        "opencompass/AIME2025",
        ("question", "answer"),
        _aime("aime25", "question"),
        ("AIME2025-I", "AIME2025-II"),
        split="test",
        about="AIME",
    ),
    ProblemSet(
        "hmmt25", "MathArena/hmmt_feb_2025", ("problem_idx", "problem", "answer"), _hmmt, about="HMMT, February 2025"
    ),
    ProblemSet(
        "gpqa",
        "Idavidrein/gpqa",
        GPQA_COLUMNS,
        _gpqa,
        ("gpqa_diamond",),
        about="GPQA-Diamond; gated: its rows must not be published",
    ),
)
PROBLEM_SETS: dict[str, ProblemSet] = {each.name: each for each in _SETS}
assert len(PROBLEM_SETS) == len(_SETS), f"two of _SETS have one name: {sorted(each.name for each in _SETS)}"


def problem_set(name: str) -> ProblemSet:
    """The set of a name. Raises `ValueError` that lists those there are."""
    if name not in PROBLEM_SETS:
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(PROBLEM_SETS)}")
    return PROBLEM_SETS[name]
