"""Statistics and analyses as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.archive.analysis import OPENING_TOKENS, Analysis, Calls
from orchestration.archive.changes import Changes, Side
from orchestration.archive.stats import StageStats
from orchestration.archive.terminal import plain, titled_table
from orchestration.bench.archive import ArchiveFigures


def stats_table(stages: Sequence[StageStats]) -> Table:
    """One column per stage."""
    rows: dict[str, Callable[[StageStats], str]] = {
        "trajectories": lambda stage: f"{stage.trajectories:,}",
        "steps": lambda stage: f"{stage.steps:,}",
        "groups": lambda stage: f"{stage.groups:,}",
        "solved": lambda stage: f"{stage.solved_share:.1%}",
        "tokens": lambda stage: f"{stage.tokens:,}",
        "by the model": lambda stage: f"{stage.model_tokens:,}",
        "after the prompt, mean": lambda stage: f"{stage.response_tokens_mean:.1f}",
        "turns, mean": lambda stage: f"{stage.turns_mean:.2f}",
        "calls": lambda stage: f"{stage.calls:,}",
        "failed, in correct ones": lambda stage: _percent(stage.failed_share_in_correct),
        "failed, in wrong ones": lambda stage: _percent(stage.failed_share_in_wrong),
        "bytes a token": lambda stage: "" if stage.bytes_per_token is None else f"{stage.bytes_per_token:.2f}",
    }
    return _side_by_side("stored trajectories", [(stage.stage, stage) for stage in stages], rows)


def _side_by_side[T](title: str, columns: Sequence[tuple[str, T]], rows: Mapping[str, Callable[[T], str]]) -> Table:
    table = titled_table(title)
    table.add_column("", style="dim", no_wrap=True)
    for name, _ in columns:
        table.add_column(plain(name), justify="right", overflow="fold")
    for name, told in rows.items():
        table.add_row(name, *(told(column) for _, column in columns))
    return table


def analysis_tables(found: Analysis) -> Iterator[RenderableType]:
    """The analysis, question by question."""
    if not found.trajectories:
        yield Text("no trajectory was selected")
        return
    yield _steps(found)
    yield _calls_per_turn(found)
    yield _errors(found)
    yield _positions(found)
    yield _forks(found)
    yield Text(
        "Archives hold the log-probability of each sampled token, not the whole distribution. Surprisal is -log p, in "
        "nats: its mean at a kind of position estimates the mean entropy there. A forking token was sampled with a "
        "probability below one half.",
        style="dim",
    )


def changes_tables(found: Changes) -> Iterator[RenderableType]:
    """What changed between two checkpoints."""
    yield _sides(found)
    yield plain(
        f"{found.problems:,} problems that both were asked: {found.better:,} answered better, {found.worse:,} worse; "
        f"right {found.difference:+.1%} (95%: {found.low:+.1%} to {found.high:+.1%})"
    )
    for title, changes in (("answered better", found.gained), ("answered worse", found.lost)):
        table = titled_table(f"{title}, the largest changes")
        for name in ("problem", "before", "after", "an example before", "after it"):
            table.add_column(name, overflow="fold", justify="right" if name in ("before", "after") else "left")
        for change in changes:
            shares = f"{change.before:.0%}", f"{change.after:.0%}"
            table.add_row(plain(change.problem), *shares, plain(change.before_example), plain(change.after_example))
        yield table
    for title, counts in (("kinds of failed calls", found.errors), ("forking tokens", found.forking_tokens)):
        table = titled_table(f"{title}, the largest changes")
        for name in ("", "before", "after"):
            table.add_column(name, justify="right" if name else "left")
        for count in counts:
            table.add_row(plain(count.what), f"{count.before:,}", f"{count.after:,}")
        yield table


def _sides(found: Changes) -> Table:
    rows: dict[str, Callable[[Side], str]] = {
        "trajectories": lambda side: f"{side.trajectories:,}",
        "right": lambda side: f"{side.right_share:.1%}",
        "tokens after the prompt": lambda side: f"{side.tokens_mean:.1f}",
        "turns": lambda side: f"{side.turns_mean:.2f}",
        "calls": lambda side: f"{side.calls_mean:.2f}",
        "failed calls": lambda side: _percent(side.failed_share),
        "forking tokens": lambda side: _percent(side.forking_share),
        "surprisal, nats a token": lambda side: "" if side.surprisal_mean is None else f"{side.surprisal_mean:.3f}",
    }
    sides = [(side.stage, side) for side in (found.before, found.after)]
    return _side_by_side("two checkpoints on the same problems", sides, rows)


def _steps(found: Analysis) -> Table:
    """Tool errors, calls and lengths of correct and wrong trajectories, over steps."""
    table = titled_table("correct and wrong trajectories over steps")
    for name in ("stage", "step"):
        table.add_column(name)
    for side in ("correct", "wrong"):
        for name in ("n", "failed calls", "a turn", "tokens"):
            table.add_column(side if name == "n" else name, justify="right")
    for stage in found.stages:
        steps = [figures for figures in found.steps if figures.stage == stage.stage]
        for figures in [*(steps if len(steps) > 1 else []), stage]:
            whole = figures.step is None
            table.add_row(
                plain(figures.stage),
                "all" if whole else str(figures.step),
                *_side(figures.correct),
                *_side(figures.wrong),
                style="bold" if whole else None,
                end_section=whole,
            )
    return table


def _side(calls: Calls) -> tuple[str, str, str, str]:
    share = calls.failed_share
    return (
        f"{calls.trajectories:,}",
        "" if share is None else f"{calls.failed}/{calls.calls} {share:.1%}",
        f"{calls.calls / calls.turns:.2f}" if calls.turns else "",
        f"{calls.tokens / calls.trajectories:.1f}" if calls.trajectories else "",
    )


def _calls_per_turn(found: Analysis) -> Table:
    table = titled_table("model turns by number of calls")
    table.add_column("stage")
    numbers = sorted({number for counts in found.calls_per_turn.values() for number in counts})
    for number in numbers:
        table.add_column(f"{number} calls" if number != 1 else "1 call", justify="right")
    for stage, counts in found.calls_per_turn.items():
        table.add_row(plain(stage), *(f"{counts.get(number, 0):,}" for number in numbers))
    return table


def _errors(found: Analysis) -> Table:
    table = titled_table("kinds of failed calls")
    table.add_column("status")
    table.add_column("kind")
    for name in ("in correct", "in wrong"):
        table.add_column(name, justify="right")
    for name in ("by stage", "example"):
        table.add_column(name, overflow="fold")
    table.add_column("what it got back", no_wrap=True)
    for kind in found.errors:
        stages = ", ".join(f"{stage} {count}" for stage, count in kind.by_stage.items())
        counts = (str(kind.in_correct), str(kind.in_wrong))
        texts = (plain(stages), plain(kind.example), plain(kind.text))
        table.add_row(kind.status, plain(kind.kind), *counts, *texts)
    return table


def _positions(found: Analysis) -> Table:
    table = titled_table(f"where the model hesitates (opening: the first {OPENING_TOKENS} tokens of a turn)")
    table.add_column("model tokens")
    for name in ("tokens", "forking", "share", "mean surprisal"):
        table.add_column(name, justify="right")
    for position in found.positions:
        if position.surprisal_mean is not None:
            share = position.forks / position.tokens
            figures = (f"{position.tokens:,}", f"{position.forks:,}", f"{share:.1%}", f"{position.surprisal_mean:.3f}")
            table.add_row(position.where, *figures)
    return table


def _forks(found: Analysis) -> Table:
    table = titled_table("forking tokens")
    table.add_column("token")
    for name in ("forks", "of", "after a tool", "mean surprisal of forks"):
        table.add_column(name, justify="right")
    for name in ("example", "in its place"):
        table.add_column(name, overflow="fold")
    for token in found.forking_tokens:
        table.add_row(
            Text(repr(token.token)),
            f"{token.forks:,}",
            f"{token.occurrences:,}",
            f"{token.after_tool:,}",
            f"{token.fork_surprisal_mean:.2f}",
            plain(token.example),
            plain(token.text.replace("\n", "⏎")),
        )
    return table


def bench_table(found: ArchiveFigures) -> Table:
    """The formats side by side."""
    table = titled_table(
        f"{found.trajectories:,} trajectories of {found.tokens / found.trajectories:,.0f} tokens ({found.source}), "
        f"{found.rounds} rounds; the index gives {found.index_rows_per_s:,.0f} rows/s"
    )
    table.add_column("")
    for name in ("appended/s", "tokens/s", "scanned/s", "tokens/s", "bytes/token"):
        table.add_column(name, justify="right")
    for name, side in (("archive", found.archive), ("JSONL", found.jsonl), ("Parquet", found.parquet)):
        rates = (side.append_per_s, side.append_tokens_per_s, side.scan_per_s, side.scan_tokens_per_s)
        table.add_row(name, *(f"{rate:,.0f}" for rate in rates), f"{side.bytes_per_token:.2f}")
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
