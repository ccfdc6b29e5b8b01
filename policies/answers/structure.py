"""Takes answers apart: lists, sets, tuples, matrices, equations with names, plus-or-minus. Text only, no evaluation.

All functions take and give text in the notation of `policies.answers.notation`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from policies.answers.notation import closes, unwrapped

_TEXT_GROUP = re.compile(r"\\text ?\{([^{}]*)\}")
_GROUPED_NUMBER = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MATRIX = re.compile(r"[(\[]? ?\\begin\{([bpBvV]?matrix|array)\}(?:\{[lcr| ]*\})?(.*?)\\end\{\1\} ?[)\]]?", re.DOTALL)
_ANGLED = re.compile(r"\\langle(.*)\\rangle|<([^<>]*)>", re.DOTALL)
_NAME = re.compile(
    r"(?:m ?)?(?:\\(?:angle|triangle|overline|text|Delta|mathcal) ?)*(?:\{[^{}]*\}|\|[^|]*\||[A-Za-z]|\\[A-Za-z]+)'*"
    r"(?: ?_ ?(?:\{[^{}]*\}|\w))?(?: ?\([^()]*\))?"
)
_QUANTITY = re.compile(r"(?:[A-Za-z+\-*/|(){},' \\]|[\^_]\{?\d|[\^_])+")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]|\\(?!frac|cdot|times|text|sqrt)[A-Za-z]+")
_RELATION = re.compile(r"<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])")
_MEMBER = re.compile(r" ?\\in(?![A-Za-z]) ?")

_CHOICE = re.compile(
    r"(?:(?:[Tt]he )?(?:[Cc]orrect )?(?:[Oo]ption|[Cc]hoice|[Aa]nswer)(?: is)? ?:? ?)?"
    r"(?:[(\[]? ?([A-Ja-j](?![A-Za-z])) ?[)\]]?[.:]?(?:(?<=[).:]) *([^ ].*))?)"
)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])")
_SHORT_WORDS = frozenset("yes no odd all".split())

Kind = Literal["list", "set", "tuple"]


@dataclass(frozen=True)
class Group:
    """Several answers in one: a bare list and a set have no order, a tuple has."""

    kind: Kind
    items: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    kind: str
    """`v` for a determinant, `V` for a norm, else empty."""
    rows: tuple[tuple[str, ...], ...]


def split_top(text: str, separator: str) -> list[str]:
    """`text` at each match of the regular expression `separator` that stands outside all brackets."""
    return split_keeping(text, separator)[0]


def split_keeping(text: str, separator: str) -> tuple[list[str], list[str]]:
    """As `split_top`, and the separators too, one less than parts."""
    parts: list[str] = []
    separators: list[str] = []
    depth = start = position = 0
    pattern = re.compile(separator)
    while position < len(text):
        found = pattern.match(text, position) if depth <= 0 else None
        if found and found[0]:
            parts.append(text[start:position])
            separators.append(found[0])
            start = position = found.end()
            continue
        character = text[position]
        depth += (character in "({[") - (character in ")}]")
        position += 2 if character == "\\" and text[position + 1 : position + 2] not in tuple("{}[]()") else 1
    return [*parts, text[start:]], separators


def as_words(text: str) -> str | None:
    """The words, if the whole answer is words; None if it is mathematics."""
    stripped = _TEXT_GROUP.sub(r" \1 ", text)
    words = re.sub(r"[\s.!,;:'`\-]+", " ", stripped).strip().casefold()
    letters = re.sub(r"[^a-z]", "", words)
    if not words or re.search(r"[\\^_=<>{}+*/|]", words):
        return None
    if re.search(r"\d", words):  # June 20
        return words if re.fullmatch(r"[a-z]{3,}(?: [a-z\d]+)*", words) else None
    if len(letters) > 3 or words in _SHORT_WORDS or not words.isascii() or (_TEXT_GROUP.search(text) and letters):
        return words
    return None  # three letters or fewer may be a product, such as xyz


def as_choice(text: str) -> str | None:
    """The letter, if the answer is one of a multiple choice: `A`, `(A)`, `\\text{(A)}`, `A.`, `Option A`, `(A) 12`.

    What follows the letter must not name another.
    """
    plain = _TEXT_GROUP.sub(r"\1", text).strip()
    found = _CHOICE.fullmatch(plain)
    return found[1].upper() if found and not _OTHER_CHOICE.search(found[2] or "") else None


def as_matrix(text: str) -> Matrix | None:
    """A matrix or vector in a LaTeX environment, or a list of lists."""
    found = _MATRIX.fullmatch(text)
    if found:
        rows = [row for row in split_top(found[2], r"\\\\(?:\[[^\]]*\])?") if row.strip()]
        kind = found[1][0] if found[1] in ("vmatrix", "Vmatrix") else ""
        return Matrix(kind, tuple(tuple(unwrapped(cell) for cell in split_top(row, "&")) for row in rows))
    if text.startswith("[") and closes(text, 0) == len(text) - 1:
        rows = [unwrapped(row) for row in split_top(text[1:-1], ",")]
        if all(row.startswith("[") and closes(row, 0) == len(row) - 1 for row in rows):
            return Matrix("", tuple(tuple(unwrapped(cell) for cell in split_top(row[1:-1], ",")) for row in rows))
    return None


def as_group(text: str) -> Group | None:
    """A list, set or tuple of at least two answers (of a set, any number); None for a single answer."""
    if text == "\\emptyset":
        return Group("set", ())
    if text.startswith("\\{") and text.endswith("\\}") and closes(text, 1) == len(text) - 1:
        return Group("set", tuple(_items(text[2:-2].strip())))
    angled = _ANGLED.fullmatch(text)
    inner = (angled[1] or angled[2]) if angled else None
    if text[:1] + text[-1:] in ("()", "[]") and closes(text, 0) == len(text) - 1:
        inner = text[1:-1]
    if inner is not None:
        items = [unwrapped(item) for item in split_top(inner, "[,;]")]
        interval = text[0] == "[" and len(items) == 2
        return Group("tuple", tuple(items)) if len(items) > 1 and not interval else None
    items = _items(text)
    return Group("list", tuple(items)) if len(items) > 1 else None


def _items(text: str) -> list[str]:
    """The members of a list. Commas between groups of three digits separate thousands, unless a space follows."""
    if _GROUPED_NUMBER.fullmatch(text):
        return [text]
    items: list[str] = []
    parts = split_top(text, r"; ?| ?, ?(?:and|or) | (?:and|or) | \\lor | \\text ?\{ ?,? ?(?:and|or) ?\}")
    for part in parts:
        for piece in split_top(part, r", "):
            piece = unwrapped(piece)
            items += (
                [piece] if _GROUPED_NUMBER.fullmatch(piece) else [unwrapped(item) for item in split_top(piece, ",")]
            )
    return [value for item in items if item for value in plus_or_minus(item)]


def plus_or_minus(text: str) -> list[str]:
    """Both readings of an answer with a plus-or-minus sign; the answer alone if it has none."""
    if "\\pm" not in text and "\\mp" not in text:
        return [text]
    upper = unwrapped(re.sub(r"\\mp ?", "-", re.sub(r"\\pm ?", "+", text)))
    lower = unwrapped(re.sub(r"\\mp ?", "+", re.sub(r"\\pm ?", "-", text)))
    return [upper, lower]


def is_relation(text: str) -> bool:
    """Whether an inequality stands outside all brackets."""
    return _ANGLED.fullmatch(text) is None and len(split_top(text, _RELATION.pattern)) > 1


def sides(text: str) -> list[str]:
    """The parts between the equals signs that stand outside all brackets."""
    return [unwrapped(part) for part in split_top(text, r"(?<![<>!:])=")]


def is_name(text: str) -> bool:
    """Whether `text` names something: `x`, `f(x)`, `x_1`, `\\angle ABC`, `(x, y)`, `\\text{Area}`."""
    if text.startswith("(") and text.endswith(")"):
        return all(is_name(part.strip()) for part in split_top(text[1:-1], ","))
    bare = text.replace(" ", "")
    return bool(_NAME.fullmatch(text)) or (bare.isalpha() and bare.isascii())


def without_name(text: str, quantities: bool = False) -> tuple[str, str]:
    """`(name, value)` of `x = 5`, `5 = x`, `x \\in \\{1, 2\\}` or `a + b = 7`; the name is empty if there is none.

    With `quantities`, a sum, product or power of several letters names its value too, as answers often have it; but
    `2x = 10` is an equation to solve.
    """
    member = split_top(text, _MEMBER.pattern)
    if len(member) == 2 and is_name(unwrapped(member[0])) and not is_relation(text):
        return unwrapped(member[0]), unwrapped(member[1])
    parts = sides(text)
    if len(parts) < 2 or is_relation(text) or not all(parts):
        return "", text
    if any(len(split_top(part, ",| and | or ")) > 1 for part in parts[1:-1]):
        return "", text  # x = 1, y = 2
    if is_name(parts[0]):
        return parts[0], parts[-1]
    if len(parts) == 2 and is_name(parts[1]) and not is_name(parts[0]):
        return parts[1], parts[0]
    letters = set(_LETTERS.findall(parts[0]))
    if not letters:
        return "", parts[-1]  # 3 + 4 = 7
    named = quantities and len(letters) > 1 and _QUANTITY.fullmatch(parts[0])
    return (parts[0], parts[-1]) if named else ("", text)
