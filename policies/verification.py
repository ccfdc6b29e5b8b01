"""Is this answer right? Extraction and comparison, pure and total: any text gets a verdict.

Rules (they close the holes of scorers that read a whole transcript):
- the answer is what the last `\\boxed{}` of the last `<answer>` block of the *last assistant turn* holds; tool
  output never counts;
- an integer gold is compared exactly as an integer: no tolerance, no percentages, no evaluation of expressions;
- any other gold is compared as text after white space and LaTeX spacing are removed.
"""

from __future__ import annotations

import re

from policies.trajectory import Verdict

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SPACING = re.compile(r"\\[,;:! ]|\s+")
_INTEGER = re.compile(r"[+-]?\d+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")


def count_answers(turn: str) -> int:
    """How many complete answer blocks a model turn holds."""
    return len(_ANSWER.findall(turn))


def last_boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, braces balanced; None if there is none."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        depth = 0
        for position in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : position]
        end = start  # unbalanced: an earlier one may be whole
    return None


def extract_answer(last_turn: str) -> str | None:
    """The final answer of a dialogue, given its last assistant turn; None if it has none."""
    blocks = _ANSWER.findall(last_turn)
    return last_boxed(blocks[-1]) if blocks else None


def parse_integer(text: str) -> int | None:
    """`text` as an integer if it is written as one: a sign, thousands separators, a trailing point are fine."""
    plain = _SPACING.sub("", _TEXT.sub(r"\1", text)).replace("{,}", ",").replace("−", "-").strip("$")
    plain = plain.removesuffix(".")
    if _GROUPED.fullmatch(plain):
        plain = plain.replace(",", "")
    if not _INTEGER.fullmatch(plain) or len(plain) > 4000:  # int() refuses more than 4,300 digits
        return None
    return int(plain)


def verify_answer(last_turn: str, gold: str) -> Verdict:
    """Judge the last assistant turn against the gold answer.

    Raises `ValueError` if the gold is empty: an unparsable gold must not pay.
    """
    if not gold.strip():
        raise ValueError("the gold answer is empty; give each problem the answer that counts as right")
    extracted = extract_answer(last_turn)
    if extracted is None:
        return Verdict(correct=False, reason="no_answer")
    wanted = parse_integer(gold)
    if wanted is None:
        correct = _SPACING.sub("", extracted) == _SPACING.sub("", gold)
        return Verdict(correct=correct, extracted=extracted, reason="right" if correct else "wrong")
    given = parse_integer(extracted)
    if given is None:
        return Verdict(correct=False, extracted=extracted, reason="unparsable")
    return Verdict(correct=given == wanted, extracted=extracted, reason="right" if given == wanted else "wrong")
