"""Instruction following as IFEval grades it: each instruction of a prompt is a rule that a program can check.

Rules and their arguments are those of IFEval (Zhou et al. 2023, arXiv 2311.07911; data set google/IFEval). A prompt
counts as followed (`strict`) if all of its instructions are. The `loose` verdict tries the response also without its
first or last line and without asterisks, since models like to add a remark or markup: one that passes is enough.

No rule may take long on a response that repeats a few characters until it is cut off, as a model that has gone astray
does: nothing interrupts a regular expression.

Sentences are counted by their ends (`.`, `!`, `?` before a space or the end), where the original uses a trained
splitter: the two differ on abbreviations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

type Arguments = Mapping[str, Any]
type Detect = Callable[[str], str]
"""Text -> the code of its language, such as `de`."""


class UnknownInstruction(ValueError):
    """An instruction that there is no rule for."""


class Followed(NamedTuple):
    """Per instruction, in the prompt's order."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def grade(response: str, instructions: Sequence[str], arguments: Sequence[Arguments], detect: Detect) -> Followed:
    """Which instructions a response follows.

    Args:
        instructions: ids such as `length_constraints:number_words`.
        arguments: one mapping for each; arguments that are None count as absent.

    Raises `UnknownInstruction`.
    """
    given = [{name: value for name, value in each.items() if value is not None} for each in arguments]
    pairs = list(zip(instructions, given, strict=True))
    return Followed(
        strict=tuple(_follows(response, name, each, detect) for name, each in pairs),
        loose=tuple(any(_follows(text, name, each, detect) for text in variants(response)) for name, each in pairs),
    )


def variants(response: str) -> list[str]:
    """The texts that a loose verdict looks at."""
    lines = response.split("\n")
    cuts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = ["\n".join(cut).strip() for cut in cuts]
    return [*texts, *(text.replace("*", "") for text in texts)]


def _follows(response: str, name: str, arguments: Arguments, detect: Detect) -> bool:
    if not response.strip():
        return False
    if name in LANGUAGE_RULES:
        return LANGUAGE_RULES[name](response, arguments, detect)
    if name not in RULES:
        known = ", ".join((*RULES, *LANGUAGE_RULES))
        raise UnknownInstruction(f"no rule for the instruction {name!r}; there are {known}")
    return RULES[name](response, arguments)


def _compared(count: int, relation: str, bound: int) -> bool:
    if relation == "at least":
        return count >= bound
    if relation == "less than":
        return count < bound
    raise UnknownInstruction(f"relation {relation!r} is neither 'at least' nor 'less than'")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _paragraphs(text: str, separator: str) -> list[str]:
    return [part.strip() for part in re.split(separator, text)]


def _cut_behind(end: str, text: str) -> list[str]:
    """The lines of a text up to the last `end` in each: what begins in them is closed in them."""
    return [line[: line.rfind(end) + len(end)] for line in text.split("\n") if end in line]


def _existence(text: str, a: Arguments) -> bool:
    return all(re.search(re.escape(word), text, re.IGNORECASE) for word in a["keywords"])


def _frequency(text: str, a: Arguments) -> bool:
    return _compared(len(re.findall(re.escape(a["keyword"]), text, re.IGNORECASE)), a["relation"], a["frequency"])


def _forbidden(text: str, a: Arguments) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in a["forbidden_words"])


def _letters(text: str, a: Arguments) -> bool:
    return _compared(text.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"])


def _sentences(text: str, a: Arguments) -> bool:
    parts = [part for part in re.split(r"(?<=[.!?])[\"')\]]*\s+|\n+", text.strip()) if _words(part)]
    return _compared(len(parts), a["relation"], a["num_sentences"])


def _number_of_paragraphs(text: str, a: Arguments) -> bool:
    parts = _paragraphs(text, r"\s?\*\*\*\s?")
    return all(parts[1:-1]) and sum(map(bool, parts)) == a["num_paragraphs"]


def _number_of_words(text: str, a: Arguments) -> bool:
    return _compared(len(_words(text)), a["relation"], a["num_words"])


def _first_word(text: str, a: Arguments) -> bool:
    parts = [part for part in _paragraphs(text, r"\n\n") if part]
    nth = a["nth_paragraph"]
    if len(parts) != a["num_paragraphs"] or not 1 <= nth <= len(parts):
        return False
    words = parts[nth - 1].split()
    first = re.match(r"[\"']*(\w[^.,?!'\"]*)", words[0])
    return first is not None and first[1].lower() == a["first_word"].lower()


def _placeholders(text: str, a: Arguments) -> bool:
    return sum(len(re.findall(r"\[.*?\]", line)) for line in _cut_behind("]", text)) >= a["num_placeholders"]


def _postscript(text: str, a: Arguments) -> bool:
    letters = re.findall(r"[a-z]", a["postscript_marker"].lower())
    return re.search(r"\.?\s?".join(letters), text.lower()) is not None


def _bullets(text: str, a: Arguments) -> bool:
    return len(re.findall(r"^[^\S\n]*(?:\*[^*]|-).*$", text, re.MULTILINE)) == a["num_bullets"]


CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _constrained(text: str, _: Arguments) -> bool:
    return any(choice in text for choice in CHOICES)


def _highlights(text: str, a: Arguments) -> bool:
    single = [each for each in re.findall(r"\*([^\n*]*)\*", text) if each.strip()]
    double = [each for each in re.findall(r"\*\*([^\n*]*)\*\*", text) if each.strip()]
    return len(single) + len(double) >= a["num_highlights"]


def _sections(text: str, a: Arguments) -> bool:
    return len(re.split(rf"\s?{re.escape(a['section_spliter'])}\s?\d+\s?", text)) - 1 >= a["num_sections"]


def _json(text: str, _: Arguments) -> bool:
    inner = text.strip()
    if len(inner) >= 6 and inner.startswith("```") and inner.endswith("```"):
        inner = inner[3:-3]
        inner = inner[4:] if inner[:4].lower() == "json" else inner
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, _: Arguments) -> bool:
    return any(title.strip("<> ") for line in _cut_behind(">>", text) for title in re.findall(r"<<.+>>", line))


def _two_responses(text: str, _: Arguments) -> bool:
    parts = [part.strip() for part in text.split("******")]
    while parts and not parts[0]:
        parts.pop(0)
    while parts and not parts[-1]:
        parts.pop()
    return len(parts) == 2 and parts[0] != parts[1]


def _repeat(text: str, a: Arguments) -> bool:
    return text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())


def _ends(text: str, a: Arguments) -> bool:
    return text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())


def _quoted(text: str, _: Arguments) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


def _capital_words(text: str, a: Arguments) -> bool:
    count = sum(word.isupper() for word in re.findall(r"[\w'-]+", text))
    return _compared(count, a["capital_relation"], a["capital_frequency"])


RULES: dict[str, Callable[[str, Arguments], bool]] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _number_of_paragraphs,
    "length_constraints:number_words": _number_of_words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _ends,
    "startend:quotation": _quoted,
    "change_case:capital_word_frequency": _capital_words,
    "punctuation:no_comma": lambda text, _: "," not in text,
}
LANGUAGE_RULES: dict[str, Callable[[str, Arguments, Detect], bool]] = {
    "language:response_language": lambda text, a, detect: detect(text) == a["language"],
    "change_case:english_capital": lambda text, _, detect: text.isupper() and detect(text) == "en",
    "change_case:english_lowercase": lambda text, _, detect: text.islower() and detect(text) == "en",
}
