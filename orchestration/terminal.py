"""What commands share: the console, the option for JSON, and work that Ctrl-C ends cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

console = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="How many simulations run at once; by default as many as there are cores.")
]


def run_interruptibly(work: Any) -> Any:
    """Run a coroutine to its end; Ctrl-C and SIGTERM cancel it, and it cleans up before the process ends."""

    async def supervised() -> Any:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        return await task

    import uvloop

    try:
        return uvloop.run(supervised())
    except asyncio.CancelledError:
        console.print("interrupted; everything that ran has been stopped")
        raise SystemExit(130) from None


@contextmanager
def told(what: str, *errors: type[Exception]) -> Iterator[None]:
    """One of `errors` ends the command with exit code 1 and its text, `what` in front, instead of a traceback."""
    try:
        yield
    except errors as failure:
        console.print(f"[bold red]{what}:[/] {escape(str(failure).strip())}", soft_wrap=True)
        raise SystemExit(1) from None


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """For work without a real loop: SIGTERM ends it as Ctrl-C does, by an exception, so that it cleans up."""
    from actors.system.virtual_loop import interrupt

    numbers = (signal.SIGINT, signal.SIGTERM)  # a shell's background jobs are born deaf to the former
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted")
        raise SystemExit(130) from None
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
