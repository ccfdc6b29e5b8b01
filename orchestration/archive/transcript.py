"""A trajectory as one reads it: turns, tokens with their texts and log-probabilities, calls with their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actors.storage.frames import ArchiveError
from orchestration.archive.source import Decode
from policies import tokens
from policies.trajectory import CallRecord, Span, Trajectory, VersionRun, version_runs, whole_turns

_CONTEXT = 8
"""Tokens before a token that its text may depend on: bytes of one character, a space that only follows something."""

_CHARACTER_BYTES = 4
"""Of UTF-8, at most: what is incomplete for longer will not be completed."""


class Token(NamedTuple):
    """A token of a transcript."""

    id: int
    text: str
    """Empty if it is a part of a character that a later token completes."""
    logprob: float | None
    """As sampled, temperature included; None if the model did not sample it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A turn of the trajectory, and after a model's turn the calls that it made."""

    kind: str
    """`prompt`, `model` or `tool`."""
    turn: int | None
    """Which model turn, from 0; None for other spans."""
    versions: tuple[VersionRun, ...]
    """The weights that sampled its tokens; several where new ones came in the middle of the turn."""
    tokens: tuple[Token, ...]
    calls: tuple[CallRecord, ...] = ()

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def logprob_mean(self) -> float | None:
        """Over the tokens that were sampled; None if none was."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else None


def transcript(trajectory: Trajectory, decode: Decode) -> list[Step]:
    """The steps of a trajectory, in order. Raises `ArchiveError` if its tokens are not known, as a simulation's are."""
    steps: list[Step] = []
    turn = 0
    for spans in whole_turns(trajectory.spans):
        kind, said = spans[0].kind, turn_tokens(spans, decode)
        if kind == "model":
            calls = tuple(record for record in trajectory.calls if record.turn == turn)
            steps.append(Step(kind, turn, version_runs(spans), said, calls))
            turn += 1
        else:
            steps.append(Step(kind, None, (), said))
    return steps


def weights_names(step: Step) -> list[str]:
    """The weights that sampled a step, in the order in which they did."""
    return [f"{version.lineage}.{version.step}" for version, _ in step.versions]


def turn_tokens(spans: Sequence[Span], decode: Decode) -> tuple[Token, ...]:
    """The tokens of a turn's spans with their texts."""
    ids = [token for span in spans for token in known_ids(span)]
    sampled = spans[0].kind == "model"
    logprobs = (
        tokens.unpack_floats(b"".join(span.logprobs for span in spans)).tolist() if sampled else [None] * len(ids)
    )
    return tuple(map(Token, ids, token_texts(ids, decode), logprobs))


def known_ids(span: Span) -> list[int]:
    """The ids of a span's tokens `[L]`. Raises `ArchiveError` for a simulated rollout's, which are counted only."""
    if not isinstance(span.ids, bytes):
        raise ArchiveError(
            "these rollouts were simulated: it is known how many tokens they have, not which; `archive stats` counts"
        )
    return tokens.unpack_ids(span.ids)


def token_texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """What each token adds to the text; together they are the text of all, if their bytes are UTF-8."""
    growing = GrowingText(decode)
    return [growing.add(token, last=index == len(ids) - 1) for index, token in enumerate(ids)]


class GrowingText:
    """The text of tokens that come one by one."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._begin = self._told = 0

    def add(self, token: int, *, last: bool = False) -> str:
        """What a token adds to the text; empty if its bytes are a part of a character that is not complete yet.

        Args:
            last: no other token will follow, so that nothing is worth waiting for.
        """
        self._ids.append(token)
        before = self._decode(self._ids[self._begin : self._told])
        text = self._decode(self._ids[self._begin :])
        waiting = len(self._ids) - self._told < _CHARACTER_BYTES and not last
        if text.endswith("\ufffd") and waiting:  # a character of which bytes are missing
            return ""
        self._told = len(self._ids)
        self._begin = max(self._begin, self._told - _CONTEXT)
        return text[len(before) :]
