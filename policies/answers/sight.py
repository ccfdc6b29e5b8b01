"""What can be told at sight, without mathematics: the same text, words, choices, numbers. Cheap, total, exact.

An integer gold is always decided here if the answer is a number, and is never met by another integer. Arithmetic that
is left to do is no answer to it: who is asked for 12 times 12 must not get away with `12 \\times 12`.
"""

from __future__ import annotations

import re

from policies.answers.notation import Unreadable, key
from policies.answers.numbers import parse_number, same_number
from policies.answers.structure import as_choice, as_words, without_name

LONGEST_ANSWER = 5000
"""Characters; a longer answer is not read."""
_ARITHMETIC = re.compile(r"(?:[\d\s+\-*/().,{}%]|\\(?:times|cdot|div|frac)(?![A-Za-z]))*")


def same_at_sight(gold: str, answer: str) -> bool | None:
    """Whether `answer` is `gold` (both normalised); None if that has to be worked out.

    Raises `Unreadable` if the answer can't be anything like the gold.
    """
    if not answer or len(answer) > LONGEST_ANSWER:
        raise Unreadable("the answer is empty or endless")
    if key(gold) == key(answer):
        return True
    choice = as_choice(gold)
    if choice is not None and choice in gold:  # a small letter is a variable
        return choice == as_choice(answer)
    words = as_words(gold)
    if words is not None:
        return words == as_words(answer)
    number = parse_number(gold)
    if number is None:
        return None
    _, value = without_name(answer, quantities=True)
    given = parse_number(value)
    if given is not None:
        return same_number(number, given)
    if as_words(value) is not None:
        raise Unreadable("words for a number")
    if number.value.denominator == 1 and _ARITHMETIC.fullmatch(value):
        raise Unreadable("arithmetic that is left to do")
    return None
