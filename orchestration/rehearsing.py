"""Several rehearsals, side by side where there are cores for it, and a display of how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from actors.system.actor import ActorError, in_a_line
from actors.system.stage import ActorStartFailed
from actors.system.virtual_loop import Stalled
from orchestration.invariants import Violation
from orchestration.side_by_side import Told, side_by_side
from orchestration.simulation import Rehearsal, Setting, rehearse

REFRESH_PER_S = 2
"""Drawing takes time of the core that simulates, where that is this process."""


class RehearsalFailed(RuntimeError):
    """A rehearsal did not come to its end: the text says under which strategy, and why."""


def rehearse_all(settings: Sequence[Setting], *, jobs: int, out: Console) -> list[Rehearsal]:
    """Rehearse each setting, up to `jobs` of them at once; `out` shows how far they are.

    Raises `RehearsalFailed`. A process that rehearses 16,384 rollouts takes half a GiB.
    """
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
        refresh_per_second=REFRESH_PER_S,
    )
    names = [setting.balancer.strategy for setting in settings]
    tasks = [display.add_task(name, total=1.0, start=False) for name in names]

    def told(index: int, share: float) -> None:
        display.start_task(tasks[index])
        display.update(tasks[index], completed=share)

    def done(index: int, rehearsal: Rehearsal) -> None:
        told(index, 1.0)
        if not out.is_terminal:
            out.print(f"{names[index]}: simulated in {rehearsal.wall_seconds:.1f} s")

    with display:
        return side_by_side(_rehearse, settings, jobs=jobs, told=told, done=done)


def _rehearse(setting: Setting, told: Told) -> Rehearsal:
    return rehearsed(replace(setting, told=told))


def rehearsed(setting: Setting) -> Rehearsal:
    """As `rehearse`; raises `RehearsalFailed` in place of what that raises."""
    try:
        return rehearse(setting)
    except (ActorError, ActorStartFailed, Stalled, Violation) as error:
        # As one line: what a handler raised comes with a traceback, and no exception's arguments survive a process.
        raise RehearsalFailed(f"{setting.balancer.strategy}: {in_a_line(error)}") from error
