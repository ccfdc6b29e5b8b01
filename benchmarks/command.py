"""What the benchmarks' commands share: how options are read, how a command ends, and how it has others run.

Whatever takes long to import is imported by the functions that need it: `--help` and a wrong option are answered at
once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from orchestration.data.rows import DataError
from orchestration.recipe import RecipeError
from orchestration.side_by_side import INTERRUPTS, WorkerLost, deaf_to
from orchestration.terminal import ending_cleanly

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"
DRILL = ROOT / "recipes" / "drill.toml"
GREENROOM = (sys.executable, "-m", "orchestration.cli")
CLEANING_UP_S = 60.0
"""How long a process that is told to end may clean up before it is killed: longer than a run takes to stop its Ray."""


class Failed(RuntimeError):
    """A benchmark can't go on; the text says why, and what to do."""


# --- options ---------------------------------------------------------------------------------------


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`, whose help is the module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, `least` or more."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"give a whole number of {least} or more, not {text!r}")
        return value

    return read


def listed(*known: str) -> Callable[[str], list[str]]:
    """The type of an option that is a list of some of these names, separated by commas: each once, or none at all."""

    def read(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for number, name in enumerate(names):
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; choose from {', '.join(known)}")
            if name in names[:number]:
                raise argparse.ArgumentTypeError(f"{name!r} is there twice")
        return names

    return read


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument(
        "--json", action="store_true", help="print figures as JSON, and nothing else on standard output"
    )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """`--set`, as `overrides`."""
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=VALUE", help="of the recipe; repeatable"
    )


def add_seeds(parser: argparse.ArgumentParser, *default: int) -> None:
    """`--seeds`; `different` says whether each is there once."""
    parser.add_argument(
        "--seeds", nargs="+", type=at_least(0), default=list(default), help=f"default: {' '.join(map(str, default))}"
    )


def refuse_repeats(parser: argparse.ArgumentParser, option: str, values: Sequence[Any]) -> None:
    """A usage error if a value is there twice: it would count twice, and tell nothing more."""
    for number, value in enumerate(values):
        if value in values[:number]:
            parser.error(f"argument {option}: {value} is there twice")


# --- how a command ends ----------------------------------------------------------------------------


def run(main: Callable[[], int | None]) -> NoReturn:
    """End this process with what a command returns.

    Ctrl-C, SIGTERM and a terminal that closes end it by an exception, so that it cleans up, and with one sentence; so
    does what a user can mend (`Failed`, and errors of recipes and data).
    """
    try:
        with ending_cleanly():
            status = main()
            sys.stdout.flush()
    except (Failed, RecipeError, DataError, WorkerLost) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    raise SystemExit(status)


def say(text: str) -> None:
    """What is being measured, on standard error: a benchmark takes minutes."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# --- others ----------------------------------------------------------------------------------------


@contextmanager
def child(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with this block: one that is still at work then is told to end, and waited for.

    It has a session of its own, so that Ctrl-C is this process's to pass on, once. (`subprocess.run` kills a child a
    quarter of a second after Ctrl-C; a run of Ray that is killed leaves folders behind.)
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **settings
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with deaf_to(*INTERRUPTS, signal.SIGTERM):  # what further ones ask for is under way
                process.terminate()
                try:
                    process.wait(CLEANING_UP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def output_of(command: Sequence[str], log: TextIO | None = None, deadline_s: float | None = None) -> str:
    """What a command prints; its errors go to `log`, or where ours go.

    Raises `Failed` if it ends with another code than 0, or not within `deadline_s`.
    """
    where = "it says why above" if log is None else f"see {log.name}"
    with child(command, stdout=subprocess.PIPE, stderr=log) as process:
        try:
            printed, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{_shown(command)} has not ended after {deadline_s:.0f} s; {where}") from None
    if process.returncode:
        raise Failed(f"{_shown(command)} ended with code {process.returncode}; {where}")
    return printed


def greenroom(*arguments: str) -> str:
    """What `greenroom` prints, as `output_of`."""
    return output_of([*GREENROOM, *arguments])


def as_arguments(settings: Sequence[str]) -> list[str]:
    """Settings of a recipe as options of `greenroom`."""
    return [part for setting in settings for part in ("--set", setting)]


def _shown(command: Sequence[str]) -> str:
    """A command as one reads it: without its many settings."""
    if tuple(command[: len(GREENROOM)]) == GREENROOM:
        return " ".join(("greenroom", *command[len(GREENROOM) : len(GREENROOM) + 2]))
    return " ".join(command[:3])
