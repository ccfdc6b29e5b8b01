"""Trajectories on a terminal: a page of the list, one of them turn by turn, and moving between the two.

Invariants:
- a page of the list costs no reading of trajectories; the index has all that it shows;
- what a model or its code wrote can't act on the terminal: it is neither markup nor control sequences (`plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from actors.storage.frames import ArchiveCorrupt
from actors.storage.index import IndexRow
from actors.storage.reader import Archive
from env.tool_call import ToolResult
from orchestration.archive.selection import Page, page_of
from orchestration.archive.source import Decode
from orchestration.archive.transcript import Step, Token, transcript, weights_names
from orchestration.terminal import visible
from policies.trajectory import CallRecord, Trajectory

PROBABILITIES = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "bold red"))
"""Least probability with which a token was sampled -> the colour that it is shown in."""


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and control characters made visible."""
    return Text(visible(text), style=style)


def titled_table(title: str) -> Table:
    """A table without columns yet, its title at its left."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def list_table(page: Page, total: int, of: int) -> Table:
    """A page of the list."""
    last = page.first + len(page.rows)
    table = titled_table(
        f"{page.first + 1 if page.rows else 0}-{last} of {total:,} trajectories"
        + (f" (of {of:,} in the archive)" if total != of else "")
        + f", page {page.number} of {page.pages}"
    )
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("id", overflow="fold", min_width=12)
    table.add_column("verdict", no_wrap=True)
    for name in ("reward", "turns", "calls", "failed", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("status", "family"):
        table.add_column(name, overflow="fold", min_width=7)
    for number, row in enumerate(page.rows, page.first + 1):
        table.add_row(
            str(number),
            plain(row.id),
            plain(row.reason.replace("_", " "), style="green" if row.correct else "red"),
            f"{row.reward:g}",
            str(row.turns),
            str(row.calls),
            Text(str(row.tool_errors or ""), style="red"),
            str(row.response_tokens),
            plain(_statuses(row)),
            plain(row.family),
        )
    return table


def _statuses(row: IndexRow) -> str:
    """How it ended, if not with an answer, and how its calls did, if not well."""
    ended = [] if row.finish == "answered" else [row.finish]
    return ", ".join([*ended, *(status for status in dict.fromkeys(row.statuses) if status != "success")])


def facts(trajectory: Trajectory) -> RenderableType:
    """What is above the turns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    verdict = trajectory.verdict
    told = f", said {verdict.extracted!r}" if verdict.extracted else ""
    rows = {
        "problem": f"{trajectory.problem.question}",
        "": f"{trajectory.problem.id} ({trajectory.problem.family})",
        "right answer": trajectory.problem.gold,
        "verdict": f"{verdict.reason}{told}; reward {trajectory.reward:g}; {trajectory.finish}",
        "length": f"{trajectory.turns} turns, {len(trajectory.calls)} calls ({trajectory.tool_errors} failed), "
        f"{trajectory.model_tokens} tokens by the model, {trajectory.response_tokens} after the prompt",
        "made by": f"{trajectory.generator}, after {trajectory.waited_seconds:.2f} s of waiting for a lease",
    }
    for name, value in rows.items():
        table.add_row(name, plain(value))
    return Panel(table, title=plain(trajectory.id), title_align="left")


def step_view(step: Step, number: int, count: int, *, with_tokens: bool) -> RenderableType:
    """One step: its text coloured by log-probability, the tokens one by one if asked for, and its calls."""
    title = {"prompt": "prompt", "tool": "what the tools said", "model": f"turn {step.turn}"}[step.kind]
    if step.versions:
        title += f", weights {', '.join(weights_names(step))}"
    mean = step.logprob_mean
    told = "" if mean is None else f", mean log-probability {mean:.3f}"
    parts: list[RenderableType] = [Rule(f"{number}/{count}  {title}  ({len(step.tokens)} tokens{told})", align="left")]
    parts.append(_token_table(step.tokens) if with_tokens else _coloured(step.tokens))
    parts += [_cell(record) for record in step.calls]
    return Group(*parts)


def _coloured(tokens: Sequence[Token]) -> Text:
    text = Text(overflow="fold")
    for token in tokens:
        text.append_text(plain(token.text, _colour(token)))
    return text


def _colour(token: Token) -> str:
    if token.logprob is None:
        return "dim"
    probability = _probability(token.logprob)
    return next((colour for least, colour in PROBABILITIES if probability >= least), PROBABILITIES[-1][1])


def _probability(logprob: float) -> float:
    """What a log-probability stands for; one above 0, which only a broken engine gives, stands for 1."""
    return math.exp(min(logprob, 0.0))


def _token_table(tokens: Sequence[Token]) -> Table:
    table = Table(box=None, padding=(0, 2))
    for name in ("#", "id", "log-probability", "probability"):
        table.add_column(name, justify="right")
    table.add_column("token")
    for index, token in enumerate(tokens):
        figures = ("", "") if token.logprob is None else (f"{token.logprob:.4f}", f"{_probability(token.logprob):.1%}")
        table.add_row(str(index), str(token.id), *figures, Text(repr(token.text), style=_colour(token)))
    return table


def _cell(record: CallRecord) -> RenderableType:
    """A call, as a notebook shows it."""
    above: list[RenderableType] = [code_view(record.call.code)]
    if record.call.input:
        above.append(plain(f"input: {record.call.input}", "dim"))
    return result_panel(record.result, above)


def code_view(code: str) -> Syntax:
    """Python in colours."""
    return Syntax(visible(code), "python", word_wrap=True, background_color="default")


def result_panel(result: ToolResult, above: Sequence[RenderableType] = ()) -> Panel:
    """What came of a call, below what is to stand `above` it."""
    parts = list(above)
    for name, stream, style in (("stdout", result.stdout, ""), ("stderr", result.stderr, "red")):
        if stream:
            parts += [Rule(name, align="left", style="dim"), plain(stream.rstrip("\n"), style)]
    reason = f": {result.reason}" if result.reason else ""
    took = f"{result.wall_seconds:.3f} s, {result.peak_memory_bytes / (1 << 20):.0f} MiB"
    colour = "red" if result.is_tool_error else "green"
    return Panel(
        Group(*parts), title=plain(f"{result.status}{reason}"), subtitle=took, title_align="left", border_style=colour
    )


class Browser:
    """Shows a selection, and one trajectory at a time.

    Args:
        rows: the selection.
        ask: shows a prompt and returns what the user typed; raises `EOFError` at the end of input.
    """

    HELP = "Enter or n: next page · p: previous · NUMBER: open · q: leave"
    OPEN_HELP = "Enter: go on · t: tokens one by one · a: all that is left · g: the group · q: back to the list"

    def __init__(
        self,
        archive: Archive,
        rows: Sequence[IndexRow],
        decode: Decode,
        *,
        console: Console,
        page_size: int,
        ask: Callable[[str], str],
    ) -> None:
        self._archive, self._rows, self._decode = archive, rows, decode
        self._console, self._size, self._ask = console, page_size, ask

    def show_page(self, number: int) -> Page:
        """Print a page of the list."""
        page = page_of(self._rows, number, self._size)
        self._console.print(list_table(page, len(self._rows), len(self._archive.rows)))
        return page

    def show_group(self, row: IndexRow) -> None:
        """Print the rollouts of a row's group."""
        others = self._archive.groups[row.group]
        self._console.print(list_table(page_of(others, 1, len(others)), len(others), len(self._archive.rows)))

    def show_whole(self, row: IndexRow, *, with_tokens: bool = False) -> None:
        """Print a trajectory from its beginning to its end."""
        trajectory = self._archive.read(row)
        self._console.print(facts(trajectory))
        steps = transcript(trajectory, self._decode)
        for number, step in enumerate(steps, 1):
            self._console.print(step_view(step, number, len(steps), with_tokens=with_tokens))

    def run(self) -> None:
        """Browse until the user leaves."""
        page, command = self.show_page(1), ""
        while (command := self._command(self.HELP)) != "q":
            if command in ("", "n", "p"):
                page = self.show_page(page.number + (-1 if command == "p" else 1))
            elif command.isdecimal() and 1 <= int(command) <= len(self._rows):
                self.step_through(self._rows[int(command) - 1])
                page = self.show_page(page.number)
            else:
                self._console.print(f"{command!r} is no command and no number of the list", markup=False)

    def _command(self, help_text: str) -> str:
        """What the user wants; the end of input is a wish to leave."""
        try:
            return self._ask(f"{help_text} > ").strip().lower()
        except EOFError:
            return "q"

    def step_through(self, row: IndexRow) -> None:
        """Show a trajectory step by step, as the user asks for more."""
        try:
            trajectory = self._archive.read(row)
        except ArchiveCorrupt as error:
            self._console.print(plain(str(error), "red"))
            return
        self._console.print(facts(trajectory))
        steps = transcript(trajectory, self._decode)
        shown, command = 0, ""
        while command != "q" and not (command == "" and shown == len(steps)):
            if command == "t":
                self._console.print(step_view(steps[shown - 1], shown, len(steps), with_tokens=True))
            elif command == "g":
                self.show_group(row)
            else:
                until = len(steps) if command == "a" else min(shown + 1, len(steps))
                for number in range(shown, until):
                    self._console.print(step_view(steps[number], number + 1, len(steps), with_tokens=False))
                shown = until
            command = self._command(self.OPEN_HELP)
