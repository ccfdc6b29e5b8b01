"""`greenroom archive verify|export|stats|index`, `greenroom show` and `greenroom analyse`.

Exit codes: 0 done, 1 the archive is damaged, 2 the input is not usable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from actors.storage.frames import ArchiveCorrupt, ArchiveError
from actors.storage.index import IndexRow
from actors.storage.reader import Archive
from orchestration.archive.selection import SelectionError, page_of, parse_condition, select
from orchestration.archive.source import find_archive
from orchestration.terminal import AsJson, ending_cleanly, visible

app = typer.Typer(no_args_is_help=True, help="Check, export and count stored trajectories.")

ArchivePath = Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A run's folder, or a folder of segments.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="FIELD=VALUE",
        help="Only these; repeatable. Numbers: step, reward, length, model_tokens, turns, calls, errors, sample, as N, "
        "A..B, A.. or ..B. Text: stage, status (of the rollout or any call), verdict, problem, family, id, group, "
        "generator, as A, 'A,B' or a pattern with *.",
    ),
]
Model = Annotated[
    Path | None, typer.Option(help="Folder with the tokenizer.json of the archive's model (default: the run's).")
]


SkipDamaged = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave out what is damaged, and say so, instead of stopping there.")
]


@contextmanager
def usable_input() -> Iterator[None]:
    """Damage ends the command with exit code 1; what is wrong with the user's input is a usage error (2)."""
    try:
        yield
    except ArchiveCorrupt as error:
        _tell_damage(error)
        raise typer.Exit(1) from error
    except (ArchiveError, SelectionError, OSError) as error:
        raise typer.BadParameter(visible(str(error))) from error


def _tell_damage(error: ArchiveCorrupt) -> None:
    print(visible(f"DAMAGED: {error}"), file=sys.stderr)


@app.command()
def verify(archive: ArchivePath, as_json: AsJson = False) -> None:
    """Read every byte: name what is torn and what is damaged. Exit code 1 if anything is damaged."""
    from actors.storage.check import check_archive

    with usable_input():
        check = check_archive(find_archive(archive))
    if as_json:
        print(json.dumps({"damaged": check.damaged, "trajectories": check.trajectories, **asdict(check)}))
    else:
        for segment in check.segments:
            behind = f", {segment.unindexed} not in its index" if segment.unindexed else ""
            print(f"{segment.name}: {segment.bytes:,} bytes, {segment.trajectories:,} whole trajectories{behind}")
        for flaw in check.flaws:
            print(visible(f"{'torn' if flaw.torn else 'DAMAGED'}: {flaw}"))
        for each, count in check.repeated.items():
            print(visible(f"stored {count} times, with different content: {each}"))
        print(f"{check.trajectories:,} trajectories, {'DAMAGED' if check.damaged else 'no damage'}")
    raise typer.Exit(int(check.damaged))


@app.command()
def index(archive: ArchivePath) -> None:
    """Make the indices anew, for an archive whose writer was killed or that has none."""
    from actors.storage.check import write_indices

    with usable_input():
        print(f"{write_indices(find_archive(archive)):,} trajectories indexed")


@app.command()
def export(
    archive: ArchivePath,
    to: Annotated[Path, typer.Argument(help="A file that ends in .parquet or .jsonl; it is replaced.")],
    where: Where = None,
    model: Model = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Write trajectories as Parquet or JSONL, tokens and log-probabilities included."""
    from orchestration.archive.export import EXPORTS
    from orchestration.archive.source import load_decode

    with usable_input():
        if to.suffix not in EXPORTS:
            raise ArchiveError(f"{to} ends in neither {' nor '.join(EXPORTS)}; the ending says what to write")
        opened, rows = _selected(archive, where)
        trajectories = opened.trajectories(rows, on_damage=_tell_damage if skip_damaged else None)
        count = EXPORTS[to.suffix](trajectories, to, load_decode(opened.folder, model))
    print(f"{count:,} trajectories in {to} ({to.stat().st_size:,} bytes)")


@app.command()
def stats(archive: ArchivePath, where: Where = None, as_json: AsJson = False) -> None:
    """Count: trajectories, tokens, rewards, tool errors and bytes, by stage."""
    from rich.console import Console

    from orchestration.archive.stats import stage_stats
    from orchestration.archive.tables import stats_table

    with usable_input():
        found = stage_stats(_selected(archive, where)[1])
    if as_json:
        print(json.dumps([stage.model_dump() for stage in found]))
    else:
        Console().print(stats_table(found))


def show(
    archive: ArchivePath,
    where: Where = None,
    sort: Annotated[str | None, typer.Option(help="Sort by a field of --where (default: as stored).")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="Largest, or latest, first.")] = False,
    page: Annotated[int | None, typer.Option(min=1, help="Print this page, and don't ask for commands.")] = None,
    page_size: Annotated[int, typer.Option(min=1, help="Trajectories on a page.")] = 20,
    open_id: Annotated[str | None, typer.Option("--open", metavar="ID", help="Print this trajectory whole.")] = None,
    with_tokens: Annotated[bool, typer.Option("--tokens", help="With --open: every token on a line.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to read in a browser, instead.")] = None,
    html_limit: Annotated[int, typer.Option(min=1, help="Trajectories that the page holds at most.")] = 400,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Read trajectories: list, filter, sort, page, open one; on the terminal, or as an HTML page."""
    from rich.console import Console

    from orchestration.archive.export import columns, json_line
    from orchestration.archive.page import write_page
    from orchestration.archive.source import decode_as_numbers, load_decode
    from orchestration.archive.terminal import Browser

    with usable_input():
        opened, rows = _selected(archive, where, sort, reverse)
        decode = load_decode(opened.folder, model)
        if html is not None:
            print(write_page(opened, rows, decode or decode_as_numbers, html, conditions=where or [], limit=html_limit))
            return
        if open_id is not None:
            rows = [row for row in opened.rows if row.id == open_id]
            if not rows:
                raise ArchiveError(f"the archive holds no trajectory {open_id!r}; ids are in the list")
        if as_json:
            if open_id is not None:  # of several attempts under one id the last, which is the one that counts
                print(json_line(columns(opened.read(rows[-1]), decode)), end="")
            else:
                print(json.dumps(_page_of_rows(rows, page, page_size)))
            return
        console = Console()
        told = decode or decode_as_numbers
        browser = Browser(opened, rows, told, console=console, page_size=page_size, ask=console.input)
        if open_id is not None:
            for row in rows:
                browser.show_whole(row, with_tokens=with_tokens)
            browser.show_group(rows[-1])
        elif page is None and sys.stdin.isatty() and console.is_terminal:
            browser.run()
        else:
            browser.show_page(page or 1)


def _page_of_rows(rows: list[IndexRow], page: int | None, size: int) -> dict[str, Any]:
    """A page of the list, for `--json`."""
    shown = page_of(rows, page or 1, size)
    listed = [row._asdict() for row in shown.rows]
    return {"selected": len(rows), "page": shown.number, "pages": shown.pages, "rows": listed}


def analyse(
    archive: ArchivePath,
    where: Where = None,
    top: Annotated[int, typer.Option(min=1, help="Kinds of errors and forking tokens to list.")] = 20,
    between: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="What changed between two checkpoints, by their evaluations, such as sft,rl-2."
        ),
    ] = None,
    model: Model = None,
    skip_damaged: SkipDamaged = False,
    as_json: AsJson = False,
) -> None:
    """Ask: tool errors in correct and wrong trajectories, kinds of error, calls per turn, length, forking tokens."""
    from rich.console import Console

    from orchestration.archive.analysis import analyse as ask
    from orchestration.archive.changes import NothingInCommon, compare
    from orchestration.archive.source import decode_as_numbers, load_decode
    from orchestration.archive.tables import analysis_tables, changes_tables

    with usable_input():
        opened, rows = _selected(archive, where)
        decode, on_damage = (
            load_decode(opened.folder, model) or decode_as_numbers,
            _tell_damage if skip_damaged else None,
        )
        if between is None:
            found = ask(opened.trajectories(rows, on_damage=on_damage), decode, top)
            tables = analysis_tables(found)
        else:
            sides = [[row for row in rows if row.stage == stage] for stage in _two_stages(between, rows)]
            before, after = (opened.trajectories(side, on_damage=on_damage) for side in sides)
            try:
                found = compare(before, after, decode, top)
            except NothingInCommon as error:
                raise SelectionError(f"--between {between}: {error}") from error
            tables = changes_tables(found)
    if as_json:
        print(found.model_dump_json())
        return
    console = Console()
    for part in tables:
        console.print(part)


def _two_stages(between: str, rows: list[IndexRow]) -> list[str]:
    """The stages that are meant: a checkpoint's evaluation, or a stage by its own name. Raises `SelectionError`."""
    there = list(dict.fromkeys(row.stage for row in rows))
    found = []
    for name in between.split(","):
        asked = [stage for stage in (f"evaluation-{name.strip()}", name.strip()) if stage in there]
        if not asked:
            raise SelectionError(f"--between {between}: no stage is called {name!r}; there are {', '.join(there)}")
        found.append(asked[0])
    if len(set(found)) != 2:
        raise SelectionError(f"--between takes two stages, such as sft,rl-2; there are {', '.join(there)}")
    return found


def bench_archive(
    trajectories: Annotated[int, typer.Option(min=1, help="How many are stored and read in each round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the three formats take turns in each.")] = 3,
    archive: Annotated[Path | None, typer.Option(help="Take them from here (default: they are made up).")] = None,
    as_json: AsJson = False,
) -> None:
    """Append and scan rates, and bytes a token: the archive against JSONL and Parquet."""
    from rich.console import Console

    from orchestration.archive.tables import bench_table
    from orchestration.bench.archive import bench_archive as measure

    with ending_cleanly(), usable_input():
        source = None if archive is None else find_archive(archive)
        found = measure(trajectories=trajectories, rounds=rounds, archive=source)
    if as_json:
        print(found.model_dump_json())
    else:
        Console().print(bench_table(found))


def _selected(
    archive: Path, where: list[str] | None, sort: str | None = None, reverse: bool = False
) -> tuple[Archive, list[IndexRow]]:
    """The archive, and the rows that meet all conditions. What is torn or damaged is told on stderr.

    Raises `ArchiveError` or `SelectionError` for unusable input.
    """
    conditions = [parse_condition(text) for text in where or []]
    opened = Archive(find_archive(archive))
    for flaw in opened.flaws:
        print(visible(f"{'torn' if flaw.torn else 'DAMAGED'}: {flaw}"), file=sys.stderr)
    return opened, select(opened.rows, conditions, sort, reverse)
