"""A replay to the environment on a terminal, and as figures."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestration.archive.terminal import plain, titled_table
from orchestration.replay.environment import SLOWER, Difference, EnvironmentReplay
from orchestration.simulation import quantile
from policies.tool_calls import shorten

EXAMPLE_CHARACTERS = 400

type Versions = Mapping[str, str]
"""`python` and every library of an image -> version."""


def image_differences(recorded: Versions | None, used: Versions) -> dict[str, tuple[str, str]]:
    """Library -> its version in the run's image and in this one, `-` where it is absent; nothing if not recorded."""
    if recorded is None:
        return {}
    names = sorted(recorded.keys() | used.keys())
    pairs = {name: (recorded.get(name, "-"), used.get(name, "-")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def as_dict(replay: EnvironmentReplay, image: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "compared": replay.compared,
        "same": replay.same,
        "left_out": dict(replay.left_out),
        "unexpected": _by_kind(replay.unexpected),
        "by_chance": dict(Counter(each.cause for each in replay.by_chance)),
        "in_time_only": len(replay.in_time_only),
        "image": {name: list(pair) for name, pair in image.items()},
        "statuses": {f"{old} -> {new}": count for (old, new), count in sorted(replay.statuses.items())},
        "seconds": {
            "stored": _percentiles(replay.stored_seconds),
            "replayed": _percentiles(replay.replayed_seconds),
        },
        "stored_peak_memory_bytes": replay.peak_memory_bytes,
        "differences": [_difference(each) for each in replay.differences],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "trajectory": each.trajectory,
        "call": each.record.call.id,
        "kinds": each.kinds,
        "unexpected": each.unexpected,
        "cause": each.cause,
        "code": each.record.call.code,
        "stored": each.record.result.model_dump(),
        "replayed": each.replayed.model_dump(),
    }


def _by_kind(differences: Sequence[Difference]) -> dict[str, int]:
    return dict(Counter(kind for each in differences for kind in each.kinds if kind != "timing"))


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50": quantile(ordered, 0.5), "p95": quantile(ordered, 0.95), "largest": ordered[-1] if ordered else 0.0}


def environment_tables(
    replay: EnvironmentReplay, image: Mapping[str, tuple[str, str]], recorded: bool, examples: int
) -> Iterator[RenderableType]:
    """Counts, what is another image, examples, and what it comes to.

    Args:
        recorded: whether the run noted what its image held.
        examples: how many differences of each kind are shown.
    """
    yield _counts(replay)
    yield _times(replay)
    if image:
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in image.items())
        yield plain(f"the image is another one: {told}", "yellow")
    elif not recorded:
        yield Text("the run did not note what its image held; versions can't be compared", style="dim")
    for title, chosen in (
        ("differs", replay.unexpected),
        ("differs by chance", replay.by_chance),
        (f"takes more than {SLOWER:g} times as long, or less than a part of it", replay.in_time_only),
    ):
        for each in _spread(chosen, examples):
            yield _example(title, each)
    yield _verdict(replay, image)


def _counts(replay: EnvironmentReplay) -> Table:
    table = titled_table("calls, executed again")
    table.add_column("")
    table.add_column("calls", justify="right")
    table.add_row("the same", f"{replay.same:,}")
    for (old, new), count in sorted(replay.statuses.items()):
        if old != new:
            table.add_row(f"status: {old} -> {new}", f"{count:,}", style="bold red")
    outputs = sum("output" in each.kinds and each.unexpected for each in replay.differences)
    endings = sum("status" in e.kinds and e.record.result.status == e.replayed.status for e in replay.differences)
    for name, count in (("status: another exit code or signal", endings), ("output", outputs)):
        if count:
            table.add_row(name, f"{count:,}", style="bold red")
    for cause, count in Counter(each.cause for each in replay.by_chance).items():
        table.add_row(plain(f"not deterministic: {cause}"), f"{count:,}", style="yellow")
    table.add_row("time only", f"{len(replay.in_time_only):,}")
    for reason, count in replay.left_out.items():
        table.add_row(plain(f"not compared: {reason}"), f"{count:,}", style="dim")
    return table


def _times(replay: EnvironmentReplay) -> Table:
    table = titled_table("seconds a call")
    table.add_column("")
    for name in ("p50", "p95", "largest"):
        table.add_column(name, justify="right")
    for name, seconds in (("stored", replay.stored_seconds), ("here", replay.replayed_seconds)):
        table.add_row(name, *(f"{value:.3f}" for value in _percentiles(seconds).values()))
    return table


def _spread(differences: Sequence[Difference], most: int) -> list[Difference]:
    """At most so many of each kind of transition, the first ones."""
    seen: Counter[tuple[str, ...]] = Counter()
    chosen = []
    for each in differences:
        kind = (*each.kinds, each.record.result.status, each.replayed.status, str(each.cause))
        seen[kind] += 1
        if seen[kind] <= most:
            chosen.append(each)
    return chosen


def _example(title: str, each: Difference) -> RenderableType:
    stored, new = each.record.result, each.replayed
    parts: list[RenderableType] = [plain(shorten(each.record.call.code, EXAMPLE_CHARACTERS), "cyan")]
    if "status" in each.kinds:
        parts.append(plain(f"{_ending(stored.status, stored.reason)}  ->  {_ending(new.status, new.reason)}", "bold"))
    if "timing" in each.kinds:
        parts.append(Text(f"{stored.wall_seconds:.3f} s  ->  {new.wall_seconds:.3f} s"))
    for old, now in ((stored.stdout, new.stdout), (stored.stderr, new.stderr)):
        if old != now and each.kinds != ("timing",):
            parts.append(_changes(old, now))
    named = title if each.cause is None else f"{title} ({each.cause})"
    return Panel(Group(*parts), title=plain(f"{each.record.call.id}: {named}"), title_align="left")


def _ending(status: str, reason: str) -> str:
    return f"{status} ({reason})" if reason else status


def _changes(old: str, new: str) -> Text:
    text = Text()
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    for line in list(lines)[3:15]:
        style = {"-": "red", "+": "green"}.get(line[:1], "dim")
        text.append_text(plain(shorten(line, EXAMPLE_CHARACTERS) + "\n", style))
    return text


def _verdict(replay: EnvironmentReplay, image: Mapping[str, tuple[str, str]]) -> Text:
    unexpected = len(replay.unexpected)
    if unexpected:
        return Text(f"{unexpected:,} of {replay.compared:,} calls are answered otherwise", style="bold red")
    told = f"no unexpected difference in {replay.compared:,} calls"
    return Text(
        f"{told}, but the image is another one" if image else told, style="bold yellow" if image else "bold green"
    )
