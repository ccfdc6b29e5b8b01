"""A model's turn, cut while it comes: what it says, and the calls that it writes.

Invariants:
- the parts in order are the turn's text, without the tags around calls;
- text is passed on as soon as it can't be the beginning of a tag.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from policies.tool_calls import CLOSE, OPEN

_CODE_SO_FAR = re.compile(r'"code"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u[0-9a-fA-F]{0,3}\Z")


class Said(NamedTuple):
    """Words."""

    text: str


class Writing(NamedTuple):
    """A call that is not complete yet."""

    raw: str
    """What is between the tags, so far."""


class Called(NamedTuple):
    """A whole call."""

    raw: str
    """What is between the tags."""


class TurnParts:
    """See the module's docstring. One object for each turn."""

    def __init__(self) -> None:
        self._held, self._in_call = "", False

    def feed(self, text: str) -> list[Said | Writing | Called]:
        """The parts that `text` completes; `Writing` comes last, again and again with more of the same call."""
        self._held += text
        parts: list[Said | Writing | Called] = []
        while True:
            before, tag, rest = self._held.partition(CLOSE if self._in_call else OPEN)
            if not tag:
                break
            if self._in_call:
                parts.append(Called(before))
            elif before:
                parts.append(Said(before))
            self._held, self._in_call = rest, not self._in_call
        if self._in_call:
            return [*parts, Writing(self._held)]
        kept = _beginning_of_tag(self._held)
        said, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return [*parts, Said(said)] if said else parts

    def end(self) -> list[Said | Writing | Called]:
        """What is left when the turn is over; a call that was not closed is words."""
        held = OPEN + self._held if self._in_call else self._held
        self._held, self._in_call = "", False
        return [Said(held)] if held else []


def _beginning_of_tag(text: str) -> int:
    """How many of the last characters could become an opening tag."""
    longest = min(len(text), len(OPEN) - 1)
    return next((count for count in range(longest, 0, -1) if OPEN.startswith(text[-count:])), 0)


def code_so_far(raw: str) -> str:
    """The code of a call that is still being written; empty if it has not come to that."""
    match = _CODE_SO_FAR.search(raw)
    if match is None:
        return ""
    text = match.group(1)
    half = _HALF_ESCAPE.search(text)
    text = text if half is None else text[: text.rindex("\\u")]
    try:
        # half of a surrogate pair is left out: terminals can't show it
        return json.loads(f'"{text}"', strict=False).encode("utf-8", "ignore").decode()
    except ValueError:  # an escape that JSON does not have: the finished call will be refused
        return text
