"""Which training problems overlap with evaluation problems: word n-grams, as in the paper (n = 8).

Words are runs of letters or digits, in lower case: neither punctuation nor LaTeX's markup hides a copy. A question
shorter than n words counts as one n-gram of its own length, and is found in longer texts all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+")
N = 8


class Overlap:
    """The n-grams of evaluation questions."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._grams: dict[int, set[tuple[str, ...]]] = {}
        """By length, shorter ones than `N` only where a whole question is so short."""
        for question in questions:
            words = words_of(question)
            size = min(N, len(words))
            if size:
                self._grams.setdefault(size, set()).update(_grams(words, size))

    def found_in(self, question: str) -> bool:
        """Whether a question shares an n-gram with any of them."""
        words = words_of(question)
        return any(gram in grams for size, grams in self._grams.items() for gram in _grams(words, size))


def words_of(question: str) -> list[str]:
    """The words that are compared."""
    return _WORD.findall(question.lower())


def _grams(words: list[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(words[start : start + size]) for start in range(len(words) - size + 1))
