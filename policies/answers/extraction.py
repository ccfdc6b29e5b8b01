"""Finds the final answer in a model's text. Pure and total: any text gives an answer or None, in linear time.

Rules (they close the holes of scorers that read a whole transcript):
- only the last assistant turn counts; what a tool printed is nobody's answer;
- with the tag required, only the last complete `<answer>` block of that turn counts;
- the answer is what the last `\\boxed{}` holds. Boxes with nothing but commas, `and` and the like between them are one
  answer together: `\\boxed{3}, \\boxed{5}` is a list, and naming two answers is no way to hedge;
- a box that is not closed does not count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ANSWER, _ANSWER_END = "<answer>", "</answer>"
_HEADER = re.compile(r"<\|im_start\|> *(\w+)|<\|start_header_id\|> *(\w+) *<\|end_header_id\|>")
_TOOL_OUTPUT_END = re.compile(r"</(?:tool_response|tool_output|interpreter)>|```output\b.*?```", re.DOTALL)
_TOOL_OUTPUT_START = re.compile(r"<(?:tool_response|tool_output|interpreter)>|```output\b")
_BRACE = re.compile(r"(\\{1,3}(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_JOINT = re.compile(
    r"(?:\s|[$,;&~*]|\\[()\[\],;! ]|and\b|or\b|\\(?:text|mathrm)\{\s*(?:and|or)\s*\}|\\q?quad\b"
    r"|[A-Za-z](?:_\{?\w\}?)?\s*=)*"
)
"""What may stand between two boxes of one answer, labels such as `x_1 =` included."""
_LONGEST_JOINT = 60
"""Characters."""


class _Box(NamedTuple):
    start: int
    end: int
    """Just behind the closing brace."""
    content: str


def count_answers(turn: str) -> int:
    """How many complete answer blocks a model turn holds."""
    return len(_answer_blocks(turn))


def last_assistant_turn(transcript: str) -> str:
    """What the assistant said last, given one turn or a whole transcript as text.

    Roles are told by ChatML and Llama headers, tool output by its tags or an `output` fence. Where tools printed
    something that looks like the end of their own output, the last end counts. A transcript that ends in another
    role's turn or in tool output has no last assistant turn: the result is empty.
    """
    turn = transcript
    header = _last(_HEADER, turn)
    if header is not None:
        turn = turn[header.end() :] if "assistant" in header.groups() else ""
    printed = _last(_TOOL_OUTPUT_END, turn)
    if printed is not None:
        turn = turn[printed.end() :]
    return _TOOL_OUTPUT_START.split(turn, maxsplit=1)[0]


def extract_answer(turn: str, require_tag: bool = True) -> str | None:
    """The final answer of one assistant turn; None if it has none."""
    if not require_tag:
        return last_boxed(turn)
    blocks = _answer_blocks(turn)
    return last_boxed(blocks[-1]) if blocks else None


def last_boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, whatever is nested in it; None if there is none.

    Of several boxes that are one answer, the contents, each named once, with commas between them.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    contents = {boxes[-1].content: None}
    for earlier, later in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = later.start - earlier.end
        if between > _LONGEST_JOINT or not _JOINT.fullmatch(text, earlier.end, later.start):
            break
        contents.setdefault(earlier.content)
    return ", ".join(reversed(contents))


def _answer_blocks(text: str) -> list[str]:
    """The contents of complete answer blocks. (A lazy regular expression takes quadratic time where none is closed.)"""
    blocks: list[str] = []
    end = 0
    while (start := text.find(_ANSWER, end)) >= 0:
        start += len(_ANSWER)
        close = text.find(_ANSWER_END, start)
        if close < 0:
            break
        blocks.append(text[start:close])
        end = close + len(_ANSWER_END)
    return blocks


def _boxes(text: str) -> list[_Box]:
    """The complete boxes in order; of nested ones the outermost. One pass: nesting costs no more than length."""
    boxes: list[_Box] = []
    open_braces: list[tuple[int, int] | None] = []
    """For each open brace None, or of a box where the command and where the content starts."""
    for token in _BRACE.finditer(text):
        if token[1]:
            open_braces.append((token.start(), token.end()))
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces and (box := open_braces.pop()) is not None:
            while boxes and boxes[-1].start > box[0]:
                boxes.pop()
            boxes.append(_Box(box[0], token.end(), text[box[1] : token.start()].strip()))
    return boxes


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found
