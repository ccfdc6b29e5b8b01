"""Branches of a trajectory on a terminal: where the stored one went, and where the others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table

from orchestration.archive.source import Decode
from orchestration.archive.terminal import facts, plain, step_view, titled_table
from orchestration.archive.transcript import transcript
from policies import tokens
from policies.trajectory import Trajectory, whole_turns


def branch_views(
    stored: Trajectory, branches: Sequence[Trajectory], turn: int, decode: Decode, sampled_by: str
) -> Iterator[RenderableType]:
    """The history, the stored continuation, each branch's, and all of them in a table.

    Args:
        turn: where they part.
        sampled_by: what made the branches.
    """
    history = turns_before(stored, turn)
    steps = transcript(stored, decode)
    yield facts(stored)
    for number, step in enumerate(steps[:history], 1):
        yield step_view(step, number, len(steps), with_tokens=False)
    for each in (stored, *branches):
        yield Rule(plain("as stored" if each is stored else f"{each.id}, sampled by {sampled_by}"), style="bold")
        continued = transcript(each, decode)
        if each is not stored:  # the engine's own count of versions says nothing of whose weights they are
            continued = [replace(step, versions=()) for step in continued]
        for number, step in enumerate(continued[history:], history + 1):
            yield step_view(step, number, len(continued), with_tokens=False)
    yield _table(stored, branches, history)


def turns_before(trajectory: Trajectory, turn: int) -> int:
    """How many turns, the prompt and those of tools among them, come before model turn `turn`."""
    places = [place for place, spans in enumerate(whole_turns(trajectory.spans)) if spans[0].kind == "model"]
    return places[turn]


def tokens_alike(one: Trajectory, other: Trajectory, history: int) -> int:
    """How many of the first tokens after the first `history` turns are the same in both."""
    first, second = (
        tokens.unpack_ids(tokens.concatenate(span.ids for spans in whole_turns(each.spans)[history:] for span in spans))
        for each in (one, other)
    )
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _table(stored: Trajectory, branches: Sequence[Trajectory], history: int) -> Table:
    table = titled_table("where they go")
    for name in ("", "verdict", "answer", "ended", "turns", "calls", "failed", "tokens", "same tokens at first"):
        table.add_column(name, justify="right" if name in ("turns", "calls", "failed", "tokens") else "left")
    for each in (stored, *branches):
        table.add_row(
            plain("stored" if each is stored else f"branch {each.sample}"),
            plain(each.verdict.reason, "green" if each.verdict.correct else "red"),
            plain(each.verdict.extracted),
            each.finish,
            str(each.turns),
            str(len(each.calls)),
            str(each.tool_errors),
            str(each.response_tokens),
            "" if each is stored else str(tokens_alike(stored, each, history)),
        )
    return table
