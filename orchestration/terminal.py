"""What commands share: the console, text as it is, the option for JSON, and work that Ctrl-C ends cleanly."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape

console = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print figures as JSON, and nothing else on standard output.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="How many simulations run at once; by default as many as there are cores.")
]


def progress_stream(as_json: bool) -> TextIO:
    """Where a command shows progress that is its output, too: standard output, unless that is for figures alone."""
    return sys.stderr if as_json else sys.stdout


_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(
    (
        *range(0x80, 0xA0),  # control characters of eight bits
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # they turn the order of others
        *(0x200B, 0x2028, 0x2029, *range(0x2060, 0x2065), 0xFEFF, *range(0xE0000, 0xE0080)),  # nobody sees them
        *range(0xD800, 0xE000),  # halves of surrogate pairs: no stream takes them
    ),
    0xFFFD,
)
"""Characters that control a terminal or deceive its reader -> what is shown for them."""


def visible(text: str) -> str:
    """Text as it may go to a terminal, whoever wrote it: what would control that, or not be seen, is made visible."""
    return text.translate(_VISIBLE)


def literal(text: str) -> str:
    """Text as it is within rich's markup."""
    return escape(visible(text))


def have_standard_streams() -> None:
    """Open those of the three standard streams that whoever started this process has closed, on nothing, and escape
    characters that an output can't encode.

    A descriptor that is missing would become that of the next file that is opened, and what libraries and other
    processes print would end in there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest one that is free is taken"
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


CLEANING_UP_S = 30.0
"""How long whoever is interrupted may clean up before another signal cuts that short."""


def ending_signals() -> list[signal.Signals]:
    """What ends a command besides Ctrl-C: SIGTERM, and a terminal that closes, unless nohup started this process."""
    closing = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *closing]


def run_interruptibly(work: Any) -> Any:
    """Run a coroutine to its end; Ctrl-C, SIGTERM and a terminal that closes cancel it, and it cleans up before the
    process ends. Being impatient leaves nothing behind: further signals wait for `CLEANING_UP_S`."""

    async def supervised() -> Any:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        interrupted_at: float | None = None

        def interrupt() -> None:
            nonlocal interrupted_at
            if interrupted_at is None or loop.time() - interrupted_at >= CLEANING_UP_S:
                interrupted_at = loop.time()
                task.cancel()

        for number in (signal.SIGINT, *ending_signals()):
            loop.add_signal_handler(number, interrupt)
        return await task

    import uvloop

    try:
        return uvloop.run(supervised())
    except asyncio.CancelledError:
        with suppress(OSError):  # the terminal may be gone
            console.print("interrupted; everything that ran has been stopped")
        raise SystemExit(130) from None


@contextmanager
def told(what: str, *errors: type[Exception]) -> Iterator[None]:
    """One of `errors` ends the command with exit code 1 and its text, `what` in front, instead of a traceback."""
    try:
        yield
    except errors as failure:
        console.print(f"[bold red]{what}:[/] {literal(str(failure).strip())}", soft_wrap=True)
        raise SystemExit(1) from None


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """For work without a real loop: SIGTERM and a terminal that closes end it as Ctrl-C does, by an exception, so that
    it cleans up."""
    from actors.system.virtual_loop import interrupt

    numbers = (signal.SIGINT, *ending_signals())  # a shell's background jobs are born deaf to the former
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            console.print("interrupted")
        raise SystemExit(130) from None
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
