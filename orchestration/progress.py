"""What long work shows while it runs: a live display on a terminal, plain lines elsewhere.

Invariants:
- without a terminal (a pipe, a file, CI, TERM=dumb) the output is whole lines of plain text: no escape codes, no
  carriage returns, each flushed when it is written;
- the terminal is as it was before once the context is left, whatever ended it;
- the work goes on when what it shows can't be written (a pipe that nobody reads, a log on a full disk, a terminal that
  is gone): that is said once on standard error, and nothing more is shown.

    with Progress() as progress:
        progress.start_stage("rl-1", total_steps=40)
        progress.update(1, reward_mean=0.41, tokens_per_s=812.0)
        progress.note("weights 1 reached all generators")
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestration.terminal import visible
from orchestration.unread_stream import UnreadStream

LABELS = {
    "reward_mean": "reward",
    "accuracy": "accuracy",
    "solved_share": "solved",
    "tokens_per_s": "tokens/s",
    "waiting_rollouts": "waiting rollouts",
    "in_flight": "in flight",
    "learner_loss": "loss",
    "tool_error_share": "tool errors",
    "response_tokens_mean": "response tokens",
}
"""How figures are called on the screen; others go by their own names, underscores as spaces."""

_SHARES = ("accuracy", "_share", "_share_in_correct")
_WHOLE = ("tokens_per_s", "waiting_rollouts", "in_flight", "response_tokens_mean")
_FEW_STEPS = 20
_EVENTS_SHOWN = 5


def is_terminal(stream: TextIO) -> bool:
    """Whether a live display makes sense on `stream`."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


def format_figure(name: str, value: Any) -> str:
    """A figure as people read it: shares in percent, rates whole, the rest with three significant digits."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    if name.endswith(_SHARES):
        return f"{value:.1%}"
    if name in _WHOLE or isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_seconds(seconds: float) -> str:
    """A length of time: `42 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Shows the stage at work, its steps, the latest figures and what happened last.

    `stream` defaults to standard output. Plain output has at most one line of progress every `plain_every_s` seconds
    besides each stage's first and last step; notes and tables always appear. Methods may be called outside the context
    too: they then write plain lines.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        plain_every_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = cast(TextIO, UnreadStream(stream if stream is not None else sys.stdout))
        self._plain_every_s = plain_every_s
        self._now = now
        self._console = Console(file=self._stream) if is_terminal(self._stream) else None
        self._live: Live | None = None
        self._begin = now()
        self._stage = ""
        self._stage_begin = self._begin
        self._step = self._done_before = 0
        self._first_news: tuple[int, float] | None = None
        """The first step of the stage that was reported, and when."""
        self._total = 0
        # The display's thread reads these two while we go on: they are replaced, never changed in place.
        self._figures: dict[str, Any] = {}
        self._events: list[tuple[float, str]] = []
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        self._begin = self._now()
        if self._console is not None:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_stage()
        live, self._live = self._live, None
        if live is not None:
            live.stop()  # also shows the cursor again and gives stdout and stderr back

    def start_stage(self, name: str, total_steps: int, done: int = 0) -> None:
        """A stage of `total_steps` steps begins; the figures of the one before go away. 0 steps: of unknown length.

        `done` of them were taken before, by a run that is resumed.
        """
        if total_steps < 0:
            raise ValueError(f"stage {name!r} can't have {total_steps} steps; give 0 if their number is not known")
        self._keep_stage()
        self._stage, self._total, self._step, self._figures = name, total_steps, done, {}
        self._done_before = done
        self._first_news = None
        self._stage_begin = self._now()
        self._last_line = float("-inf")
        if self._live is None:
            steps = f", {total_steps} step{'s' if total_steps > 1 else ''}" if total_steps else ""
            self._line(f"{name} goes on after step {done} of {total_steps}" if done else f"{name} begins{steps}")

    def update(self, step: int, **figures: Any) -> None:
        """Step `step` (from 1) is done, or has news; figures that are not given keep their last value.

        Nothing is shown before a stage begins: a run that is resumed may be told again of a step that it has shown.
        """
        if not self._stage:
            return
        self._figures = {**self._figures, **figures}
        is_new, self._step = step != self._step, step
        if is_new and self._first_news is None:
            self._first_news = step, self._now()
        if self._live is not None:
            return
        now = self._now()
        is_end = is_new and (step == 1 or step == self._total)
        if is_end or now - self._last_line >= self._plain_every_s:
            self._last_line = now
            self._line(self._summary())

    def note(self, text: str) -> None:
        """Something happened that people want to know."""
        self._events = [*self._events, (self._now(), text)][-_EVENTS_SHOWN:]
        if self._live is None:
            self._line(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table that stays on the screen: the first column is text, the others are right-aligned."""
        plain = self._live is None
        table = Table(title=escape(title), title_justify="left", box=box.MARKDOWN if plain else box.SIMPLE_HEAD)
        for index, name in enumerate(columns):
            table.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        if self._live is not None:
            self._live.console.print(table)
            return
        # Wide enough for any table of ours: a narrow default would cut cells where nobody scrolls.
        console = Console(file=self._stream, width=200, color_system=None, force_terminal=False, highlight=False)
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            if line.strip():
                self._write(line.rstrip())

    def eta_seconds(self) -> float | None:
        """Seconds to the stage's end at its pace so far; None where that is not known yet.

        What comes first may take much longer than the rest: it is reckoned with only as long as there is nothing else,
        and in a short stage.
        """
        left, now = self._total - self._step, self._now()
        if not self._total or self._first_news is None:
            return None
        first, since = self._first_news
        if self._step > first:
            return (now - since) / (self._step - first) * left
        return (now - self._stage_begin) / (first - self._done_before) * left if left <= _FEW_STEPS else None

    def _keep_stage(self) -> None:
        """Leave one line about the stage above the live display, which will show something else."""
        if self._live is not None and self._step:
            took = format_seconds(self._now() - self._stage_begin)
            self._live.console.print(Text(f"{self._summary()}  in {took}"))

    def _summary(self) -> str:
        """One line of plain progress."""
        place = f"{self._step}/{self._total}" if self._total else str(self._step)
        parts = [f"{self._stage} {place}"]
        parts += [f"{_label(name)} {format_figure(name, value)}" for name, value in self._figures.items()]
        eta = self.eta_seconds()
        if eta:
            parts.append(f"eta {format_seconds(eta)}")
        return "  ".join(parts)

    def _line(self, text: str) -> None:
        self._write(f"[{format_seconds(self._now() - self._begin):>12}] {text}")

    def _write(self, line: str) -> None:
        self._stream.write("".join(c if c.isprintable() or c in "\t\n" else " " for c in line) + "\n")
        self._stream.flush()

    def _render(self) -> RenderableType:
        """The live display, anew at each refresh."""
        parts: list[RenderableType] = []
        if self._stage:
            parts += [self._header(), self._figures_table()]
        for moment, text in self._events:
            line = f"  {format_seconds(moment - self._begin):>12}  {text}"
            parts.append(Text(visible(line), style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)

    def _header(self) -> Table:
        """Stage, bar, step and times, in one row."""
        row = Table.grid(padding=(0, 2))
        eta = self.eta_seconds()
        total = self._total or None
        row.add_row(
            Text(self._stage, style="bold"),
            ProgressBar(total=total, completed=self._step, width=32, pulse=total is None),
            Text(f"step {self._step}/{self._total}" if total else f"step {self._step}"),
            Text(format_seconds(self._now() - self._begin), style="dim"),
            Text(f"eta {format_seconds(eta)}" if eta else "", style="cyan"),
        )
        return row

    def _figures_table(self) -> Columns:
        """Each name with its value, in as many rows as the width takes."""
        return Columns(
            [
                Text.assemble((_label(name) + " ", "dim"), (format_figure(name, value), "bold"))
                for name, value in self._figures.items()
            ],
            padding=(0, 3),
        )


def _label(name: str) -> str:
    return LABELS.get(name) or name.removeprefix("learner_").replace("_", " ")


class RunTable:
    """The table that a run ends with, from `summary.json`'s `stages`."""

    columns = (
        "stage",
        "accuracy (95% CI)",
        "response tokens",
        "tool calls",
        "tool errors in correct",
    )

    def __init__(self, stages: Sequence[Mapping[str, Any]]) -> None:
        self._stages = stages

    def rows(self) -> list[tuple[str, ...]]:
        """One row a stage; a figure that is not known is a dash."""
        return [
            (
                str(stage.get("name", "")),
                self._accuracy(stage),
                _fixed(stage.get("mean_response_tokens"), ".1f"),
                _fixed(stage.get("mean_tool_calls"), ".2f"),
                _fixed(stage.get("tool_error_share_in_correct"), ".1%"),
            )
            for stage in self._stages
        ]

    def show(self, progress: Progress, title: str = "Held-out problems after each stage") -> None:
        """Print it where the run's progress is shown."""
        progress.table(title, self.columns, self.rows())

    @staticmethod
    def _accuracy(stage: Mapping[str, Any]) -> str:
        low, high = stage.get("accuracy_low"), stage.get("accuracy_high")
        value = _fixed(stage.get("accuracy"), ".1%")
        if low is None or high is None:
            return value
        return f"{value} ({100 * low:.1f}–{100 * high:.1f})"


def _fixed(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)
