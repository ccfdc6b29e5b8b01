"""What a run's archive tells, for its report: `analysis.json`, and the section made of it.

Invariant: what the model and its code wrote is escaped: it is text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from pydantic import ValidationError

from actors.storage.reader import read_archive
from orchestration.archive.analysis import OPENING_TOKENS, Analysis, Calls, analyse
from orchestration.archive.source import decode_as_numbers, load_decode
from orchestration.run_folder import write_whole

ANALYSIS_FILE = "analysis.json"
_KINDS_SHOWN = 10


class AnalysisUnreadable(ValueError):
    """A file in the place of an analysis that is none."""


def write_analysis(folder: Path, model: Path) -> None:
    """Ask the archive of the run in `folder`, and write what it says to `analysis.json`.

    Args:
        model: holds the tokenizer.

    Raises `ArchiveCorrupt` if the archive is damaged.
    """
    archive = folder / "archive"
    found = analyse(read_archive(archive), load_decode(archive, model) or decode_as_numbers)
    write_whole(folder / ANALYSIS_FILE, found.model_dump_json(indent=1) + "\n")


def read_analysis(folder: Path) -> Analysis | None:
    """What `write_analysis` wrote; None if it did not. Raises `AnalysisUnreadable` if the file holds something else."""
    path = folder / ANALYSIS_FILE
    if not path.is_file():
        return None
    try:
        return Analysis.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise AnalysisUnreadable(
            f"{ANALYSIS_FILE} holds no analysis: what the trajectories tell is not shown"
        ) from error


def analysis_section(found: Analysis | None) -> str:
    """The section of the report; empty if there is nothing to tell."""
    if found is None or not found.trajectories:
        return ""
    parts = [
        _part("Correct and wrong trajectories", *_sides(found)),
        _part("Kinds of failed calls", *_errors(found)),
        _part("Where the model hesitates", *_positions(found)),
        _part("Forking tokens", *_forks(found)),
    ]
    return f'<section class="told"><h2>What the trajectories tell</h2>{"".join(parts)}</section>'


def _part(title: str, note: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with its title; a sentence in its place if it has no rows."""
    if not rows:
        return f'<h3>{escape(title)}</h3><p class="faint">none</p>'
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="facts"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<h3>{escape(title)}</h3><p class="faint">{escape(note)}</p>{table}'


type _Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def _sides(found: Analysis) -> _Table:
    columns = ("stage", "", "trajectories", "calls", "failed", "share", "calls a turn", "tokens after the prompt")
    rows = [
        (figures.stage, name, *_calls(calls))
        for figures in found.stages
        for name, calls in (("correct", figures.correct), ("wrong", figures.wrong))
        if calls.trajectories
    ]
    return "Every stored rollout; a failed call is one that resampling counts as a tool error.", columns, rows


def _calls(calls: Calls) -> Iterable[str]:
    share = calls.failed_share
    yield f"{calls.trajectories:,}"
    yield f"{calls.calls:,}"
    yield f"{calls.failed:,}"
    yield "" if share is None else f"{share:.1%}"
    yield f"{calls.calls / calls.turns:.2f}" if calls.turns else ""
    yield f"{calls.tokens / calls.trajectories:.1f}"


def _errors(found: Analysis) -> _Table:
    columns = ("status", "kind", "in correct", "in wrong", "by stage", "example", "what it got back")
    rows = [
        (
            kind.status,
            kind.kind,
            kind.in_correct,
            kind.in_wrong,
            ", ".join(f"{stage} {count}" for stage, count in kind.by_stage.items()),
            kind.example,
            kind.text,
        )
        for kind in found.errors[:_KINDS_SHOWN]
    ]
    return "Numbers of calls; `greenroom show RUN --open EXAMPLE` shows one.", columns, rows


def _positions(found: Analysis) -> _Table:
    rows = [
        (
            position.where,
            f"{position.tokens:,}",
            f"{position.forks:,}",
            f"{position.forks / position.tokens:.1%}",
            f"{position.surprisal_mean:.3f}",
        )
        for position in found.positions
        if position.surprisal_mean is not None
    ]
    note = (
        f"The opening is a turn's first {OPENING_TOKENS} tokens. Surprisal is minus the log-probability of what was "
        "sampled, in nats; its mean at a kind of position estimates the mean entropy there. A forking token had less "
        "than half of the probability."
    )
    return note, ("model tokens", "number", "forking", "share", "mean surprisal"), rows


def _forks(found: Analysis) -> _Table:
    columns = ("token", "forks", "of", "after a tool", "mean surprisal of forks", "example", "in its place")
    rows = [
        (
            repr(token.token),
            f"{token.forks:,}",
            f"{token.occurrences:,}",
            f"{token.after_tool:,}",
            f"{token.fork_surprisal_mean:.2f}",
            token.example,
            token.text,
        )
        for token in found.forking_tokens[:_KINDS_SHOWN]
    ]
    return "The tokens that were most often sampled against the odds.", columns, rows
