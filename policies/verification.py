"""Is this answer right? What needs no mathematics is decided here, pure and total: any text gets a verdict or a `None`.

Rules (they close the holes of scorers that read a whole transcript):
- the answer comes from the last assistant turn, never from tool output (`policies.answers.extraction`);
- an integer gold is compared exactly as an integer, no matter how both are written;
- no comparison has a tolerance, and an answer that names two values is not half right;
- a gold that is empty is an error: it must not pay.

`judge_at_sight` gives None where expressions have to be compared: `policies.answers.comparison` does that, in a process
that can be killed (`actors.verification`).
"""

from __future__ import annotations

from typing import Literal

from policies.answers.extraction import count_answers, extract_answer, last_assistant_turn
from policies.answers.notation import Unreadable, normalise
from policies.answers.sight import LONGEST_ANSWER, same_at_sight
from policies.trajectory import Verdict

__all__ = ["count_answers", "extract_answer", "final_answer", "judge_at_sight", "verdict_of"]

Outcome = Literal["right", "wrong", "unparsable", "timed_out"]


def final_answer(response: str, require_tag: bool = True) -> str | None:
    """The final answer in a response: one turn's text, or a whole transcript as text; None if it has none."""
    readable = response.encode("utf-8", "replace").decode()  # lone surrogates can't be stored or sent
    return extract_answer(last_assistant_turn(readable), require_tag)


def judge_at_sight(extracted: str | None, gold: str) -> Verdict | None:
    """The verdict on a final answer, or None if that takes mathematics.

    Raises `ValueError` if the gold is empty.
    """
    if not gold.strip():
        raise ValueError("the gold answer is empty; give each problem the answer that counts as right")
    if extracted is None:
        return Verdict(correct=False, reason="no_answer")
    if len(extracted) > LONGEST_ANSWER:
        return verdict_of(extracted[:LONGEST_ANSWER], "unparsable")
    try:
        same = same_at_sight(normalise(gold), normalise(extracted))
    except Unreadable:
        return verdict_of(extracted, "unparsable")
    return None if same is None else verdict_of(extracted, "right" if same else "wrong")


def verdict_of(extracted: str, outcome: Outcome) -> Verdict:
    """The verdict on an answer that was found."""
    return Verdict(correct=outcome == "right", extracted=extracted, reason=outcome)
