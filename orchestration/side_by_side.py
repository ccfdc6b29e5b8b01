"""Work that keeps a core busy for long, piece by piece, in processes side by side: simulations, mostly.

Invariants:
- results are told of in the order of the items, whichever is done first; the first piece that raises ends the others,
  and what it raised is raised here;
- no process is left behind, however this ends: by an exception (Ctrl-C is one) they are told to end and waited for,
  and the kernel kills them when this process dies;
- nor are their temporary files, even of one that was killed: this process deletes them, unless it is killed itself.

Not `concurrent.futures`: processes of its pools share a lock, and one that is ended while it waits for work takes the
lock with it, so that the others never end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from actors.system.orphans import die_with
from actors.system.virtual_loop import interrupt
from orchestration.scratch_folder import scratch_folder

LOOK_S = 0.5
"""How long a signal may go unnoticed that comes right before this process begins to wait."""

type Told = Callable[[float], None]
"""Called by the work, now and then, with the share of it that is done, 0 to 1."""


class WorkerLost(RuntimeError):
    """A process ended before its work: the text says how, and what to do."""


def usable_cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0))


def side_by_side[Item, Result](
    work: Callable[[Item, Told], Result],
    items: Sequence[Item],
    *,
    jobs: int,
    told: Callable[[int, float], None] = lambda index, share: None,
    done: Callable[[int, Result], None] = lambda index, result: None,
) -> list[Result]:
    """`work` on each item, in `jobs` processes at most; in this one if there would be only one.

    Must be called by the main thread. Where there are processes, work, items and results have to be picklable.

    Args:
        told: called with the number of an item and the share of its work that is done.
        done: called with the number of an item and its result, in the order of the items.

    Raises what a piece of work raises (another process's traceback is in its notes), and `WorkerLost`.
    """
    jobs = min(jobs, len(items))
    results: dict[int, Result] = {}
    ended = 0

    def found(index: int, result: Result) -> None:
        nonlocal ended
        results[index] = result
        while ended in results:
            done(ended, results[ended])
            ended += 1

    if jobs <= 1:
        for index, item in enumerate(items):
            found(index, work(item, partial(told, index)))
    else:
        with scratch_folder("greenroom-side-by-side-") as folder, _processes(jobs, work, items, folder) as pipes:
            _hand_out(pipes, len(items), told, found)
    return [results[index] for index in range(len(items))]


def _hand_out(
    idle: list[Connection[Any, Any]],
    items: int,
    told: Callable[[int, float], None],
    found: Callable[[int, Any], None],
) -> None:
    """Give processes one item after another, by number, until there is a result for each."""
    left = iter(range(items))
    busy: dict[Connection[Any, Any], int] = {}

    def employ(pipe: Connection[Any, Any]) -> None:
        index = next(left, None)
        if index is not None:
            busy[pipe] = index
            with suppress(BrokenPipeError):  # it has ended: that shows when it is listened to
                pipe.send(index)

    for pipe in idle:
        employ(pipe)
    while busy:
        for ready in wait(list(busy), LOOK_S):
            pipe = cast("Connection[Any, Any]", ready)
            try:
                what, value = pipe.recv()
            except (EOFError, ConnectionResetError):  # the latter if it did not even hear what to do
                raise WorkerLost(
                    "a process ended before its work; if memory was short, run fewer at once (--jobs)"
                ) from None
            if what == "told":
                told(busy[pipe], value)
            elif what == "failed":
                raise value
            else:
                index = busy.pop(pipe)
                employ(pipe)
                found(index, value)


@contextmanager
def _processes(
    jobs: int, work: Callable[..., Any], items: Sequence[Any], scratch: Path
) -> Iterator[list[Connection[Any, Any]]]:
    """The pipes of so many processes, which take numbers of items and answer with what comes of them."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads (displays have one) may hang
    processes, pipes = [], []
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            pipes.append(here)
            process = context.Process(target=_serve, args=(there, work, items, os.getpid(), scratch), daemon=True)
            with deaf_to(*INTERRUPTS):
                process.start()
            processes.append(process)
            there.close()  # so that the end of the process is the end of what can be read
        yield pipes
    finally:
        for process in processes:
            process.terminate()
        for pipe in pipes:
            pipe.close()  # nobody waits for what would be sent, or for somebody to read it
        for process in processes:
            process.join()


INTERRUPTS = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all of its processes: Ctrl-C, and that it closes."""


@contextmanager
def deaf_to(*numbers: signal.Signals) -> Iterator[None]:
    """These signals are ignored meanwhile; a process that is started in the block never hears of them at all.

    (Blocked signals would be inherited, too, but `multiprocessing` unblocks SIGINT when it first starts a process.)
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- in the processes ------------------------------------------------------------------------------


def _serve[Item, Result](
    pipe: Connection[Any, Any], work: Callable[[Item, Told], Result], items: Sequence[Item], parent: int, scratch: Path
) -> None:
    die_with(parent)
    tempfile.tempdir = str(scratch)
    signal.signal(signal.SIGTERM, _end)

    def told(share: float) -> None:
        with suppress(OSError):  # nobody listens any more: the end of this process is on its way
            pipe.send(("told", share))

    try:
        while True:
            item = items[pipe.recv()]
            try:
                result = work(item, told)
            except Exception as error:  # a boundary: it is raised where the result is waited for
                error.add_note(traceback.format_exc())
                pipe.send(("failed", error))
            else:
                pipe.send(("done", result))
    except (KeyboardInterrupt, EOFError, OSError):
        pass  # told to end, or nobody is there any more


_told_to_end = False


def _end(*_: object) -> None:
    """Work that is ended cleans up, as after Ctrl-C."""
    global _told_to_end
    if not _told_to_end:  # else it is just cleaning up
        _told_to_end = True
        interrupt()
