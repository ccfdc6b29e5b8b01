"""Rewrites the many ways in which one thing is written in LaTeX and Unicode to one. Pure text, total, no evaluation.

Invariant: what is rewritten keeps its meaning. Where a notation is ambiguous (`1,234`: a number or a list?) it is left
to those who read it, so spaces after commas survive.
"""

from __future__ import annotations

import re
import unicodedata


class Unreadable(ValueError):
    """Text that is nothing that can be compared."""


_VULGAR = re.compile(r"[¼-¾⅐-⅞]")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ", "0123456789+-()n")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ]+")
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—‒‐‑﹣－", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
        **dict.fromkeys('“”„«»"', ""),
        **dict.fromkeys("·⋅∙•", r" \cdot "),
        **dict.fromkeys("×✕", r" \times "),
        "÷": r" \div ",
        "√": r" \sqrt ",
        "∞": r" \infty ",
        "≤": r" \le ",
        "⩽": r" \le ",
        "≥": r" \ge ",
        "⩾": r" \ge ",
        "≠": r" \ne ",
        "±": r" \pm ",
        "∓": r" \mp ",
        "∪": r" \cup ",
        "∩": r" \cap ",
        "∈": r" \in ",
        "∅": r" \emptyset ",
        "∖": r" \setminus ",
        "ℝ": r" \mathbb{R} ",
        **dict.fromkeys("°º", r"^\circ "),
        "⟨": r" \langle ",
        "⟩": r" \rangle ",
        "。": ".",
        "、": ",",
        "’": "'",
        "∶": ":",
        "⁄": "/",
        "∕": "/",
        "∣": "|",
        "∧": r" \land ",
        "∨": r" \lor ",
        "α": r" \alpha ",
        "β": r" \beta ",
        "γ": r" \gamma ",
        "δ": r" \delta ",
        "θ": r" \theta ",
        "λ": r" \lambda ",
        "μ": r" \mu ",
        "π": r" \pi ",
        "σ": r" \sigma ",
        "φ": r" \phi ",
        "ω": r" \omega ",
    }
)

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?=[A-Za-z])(?!.*\\end\{)", r"\\"),  # escaped once too often, as from JSON; but in a matrix it ends rows
        (r"\\\$|\$|\\\(|\\\)|\\\[(?!\d)|\\\](?!\d)", " "),
        (r",\s*\\[!,;:]\s*(?=\d{3})", ","),
        (r"(?<=\d)'(?=\d{3}(?!\d))", ","),
        (r"\\!\s*", ""),
        (r"\{\s*,\s*\}", ","),
        (
            r"(?<!\\)\\[,;: ]|(?<!\\)\\(?:q?quad|thinspace|enspace|hfill|displaystyle|textstyle|limits)(?![A-Za-z])|~",
            " ",
        ),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:boxed|fbox)(?=\s*\{)", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\leq?(?:slant)?(?![A-Za-z])|<=", r" \\le "),
        (r"\\geq?(?:slant)?(?![A-Za-z])|>=", r" \\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq?(?![A-Za-z])|\s!=", r" \\ne "),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\[lr](?:vert|Vert)(?![A-Za-z])|\\vert(?![A-Za-z])", "|"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\R(?![A-Za-z])|\\(?:mathbb|mathbf)\s*\{?\s*R(?![A-Za-z])\s*\}?", r"\\mathbb{R}"),
        (r"\\(?:backslash|smallsetminus)(?![A-Za-z])", r"\\setminus"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\(?:wedge)(?![A-Za-z])", r"\\land"),
        (r"\\(?:vee)(?![A-Za-z])", r"\\lor"),
        (r"\\var(theta|phi|epsilon)(?![A-Za-z])", r"\\\1"),
        (r"\\(?:bf|rm|it|sf)(?![A-Za-z])", ""),
        (r"\\(?:mathbf|boldsymbol|bm|mathit|mathnormal|vec)\s*\{([^{}]*)\}", r"{\1}"),
        (r"\\(?:textbf|textit|textrm|textnormal|textsf|texttt|mathrm|mathsf|mbox|hbox|operatorname)\s*\{", r"\\text{"),
        (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        (r"\\underline(?=\s*\{)", ""),
        (r"^\s*\\text\s*\{\s*(?:[Tt]he )?(?:final )?[Aa]nswer(?: is)?\s*:?\s*\}", ""),
        (r"\\text\s*\{\s*([+-]?\d[\d.,]*)\s+(?=[A-Za-z])", r"\1\\text{"),
        (
            r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}(\s*\^\s*\{?\d\}?)?\s*\}",
            r"\\text{\1/\2}\3",
        ),
        (r"\\text\s*\{([^{}]*)\}\s*/\s*\\text\s*\{([^{}]*)\}", r"\\text{\1/\2}"),
        (r"\\text\s*\{\s*([A-Za-z])\s*\}", r"{\1}"),
        (r"\\text\s*\{\s*([^A-Za-z{}]*)\}", r" \1 "),
        (r"\\text\s*\{\s*(and|or)\s*\}", r" \1 "),
        (r"\\%|(?<![A-Za-z])(?:percent|pct)(?![A-Za-z])|\\text\s*\{\s*(?:percent|pct)\s*\}", "%"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|\\text\s*\{\s*degrees?\s*\}", r"^\\circ "),
        (r"\\text\s*\{\s*(?:infinity|infty)\s*\}", r"\\infty "),
        (r"(?<![A-Za-z\\])C\((\d+), ?(\d+)\)", r"\\binom{\1}{\2}"),
        (r"^\s*\*\*(.*)\*\*\s*$", r"\1"),
        (r"\*\*", "^"),
    )
)
_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![\\A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])", r"\\infty "),
        (
            r"(?<![\\A-Za-z])(a?(?:rc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|sqrt)(?=\s*[\^({_]|\s+[A-Za-z\d])",
            r"\\\1",
        ),
    )
)
_BRACED = r"(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
_BARE = r"(\\[A-Za-z]+|[^\s{}\\])"
_FRACTION = re.compile(rf"\\(frac|binom)(?![A-Za-z])\s*(?:{_BRACED}\s*{_BARE}|{_BARE}\s*(?:{_BRACED}|{_BARE}))")
_ROOT = re.compile(
    r"\\sqrt(?![A-Za-z])\s*(\[[^\[\]]*\])?\s*(?:\(((?:[^()]|\([^()]*\))*)\)|(\d+(?:\.\d+)?|\\[A-Za-z]+|[^\s{}\\\[(]))"
)
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_POWER = re.compile(r"\^\s*\(((?:[^()]|\([^()]*\))*)\)")
_SPACE = re.compile(r"\s+")
_LOOSE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_TRAILING = ".,;:"
_DEEPEST = 8
"""Levels of nesting that are undone: braces around the whole, arguments without braces in `\\sqrt{1+\\sqrt2}`."""


_PLAIN = re.compile(r"[\d+\-/., ()]*")


def normalise(text: str) -> str:
    """`text` in the notation that the rest of this package reads."""
    if text.isascii() and _PLAIN.fullmatch(text):  # most answers, and there are many
        return unwrapped(_SPACE.sub(" ", text))
    text = _VULGAR.sub(_spelt_fraction, text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + run[0].translate(_SUBSCRIPTS) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if "\\text" not in text:
        for pattern, replacement in _WORDS:
            text = pattern.sub(replacement, text)
    for _ in range(_DEEPEST):
        before = text
        text = _OVER.sub(r"\\frac{\1}{\2}", text)
        text = _FRACTION.sub(_braced_fraction, text)
        text = _ROOT.sub(_braced_root, text)
        text = _POWER.sub(r"^{\1}", text)
        if text == before:
            break
    return unwrapped(_SPACE.sub(" ", text).strip())


def unwrapped(text: str) -> str:
    """Without braces around the whole, surrounding space, and punctuation that ends a sentence."""
    for _ in range(_DEEPEST):
        shorter = text.strip().rstrip(_TRAILING).strip()
        if shorter.startswith("{") and shorter.endswith("}") and closes(shorter, 0) == len(shorter) - 1:
            shorter = shorter[1:-1]
        if shorter == text:
            return text
        text = shorter
    return text


def closes(text: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed; -1 if it never is. Kinds are not told apart: `[0, 1)`."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "({[":
            depth += 1
        elif text[position] in ")}]":
            depth -= 1
            if depth == 0:
                return position
    return -1


def key(normalised: str) -> str:
    """Equal for texts that differ in space only. (Space between digits stays: `1 1/4` is not `11/4`.)"""
    return _LOOSE_SPACE.sub("", normalised)


def _spelt_fraction(character: re.Match[str]) -> str:
    over, under = unicodedata.normalize("NFKC", character[0]).split("⁄")
    return f"\\frac{{{over}}}{{{under or 1}}}"


def _braced(argument: str) -> str:
    return argument if argument.startswith("{") else f"{{{argument}}}"


def _braced_fraction(found: re.Match[str]) -> str:
    over, under = (_braced(argument) for argument in found.groups()[1:] if argument)
    return f"\\{found[1]}{over}{under}"


def _braced_root(found: re.Match[str]) -> str:
    return f"\\sqrt{found[1] or ''}{{{found[2] or found[3]}}}"
