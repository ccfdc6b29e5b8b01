"""A model's turn on a terminal, as it comes: words, code in colours, and what the code wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from env.tool_call import TOOLS, Limits, ToolResult
from orchestration.archive.source import Decode
from orchestration.archive.terminal import code_view, plain, result_panel
from orchestration.archive.transcript import GrowingText
from orchestration.chat.turn_parts import Called, Said, TurnParts, Writing, code_so_far
from policies.tool_calls import CLOSE, OPEN, parse_calls
from policies.trajectory import Finish

_TOLD: dict[Finish, str] = {
    "length": "no room is left: the turn was cut off by --max-tokens, or the context is full (/reset begins anew)",
    "turns": "that was the last turn by --max-turns; say something and the model goes on",
    "interrupted": "stopped",
    "sandbox_failure": "the sandbox failed; the model will read so with your next message",
}


class TurnView:
    """Shows turns on `console`.

    Args:
        decode: token ids -> text.
        stop_ids: tokens that are not shown.
    """

    def __init__(self, console: Console, decode: Decode, stop_ids: Sequence[int]) -> None:
        self._console, self._decode, self._stop_ids = console, decode, stop_ids
        self._live: Live | None = None
        self._at_line_start = True
        self._begin()

    def _begin(self) -> None:
        self._text, self._parts = GrowingText(self._decode), TurnParts()

    def tokens(self, ids: Sequence[int]) -> None:
        """Show what the model has just said."""
        for token in ids:
            if token not in self._stop_ids:
                self._show(self._parts.feed(self._text.add(token)))

    def turn_ends(self) -> None:
        """The model's turn is over, or was stopped."""
        self._show(self._parts.end())
        self._close_live()
        self._new_line()
        self._begin()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While code runs."""
        with self._console.status("running"):
            yield

    def results(self, results: Sequence[ToolResult]) -> None:
        """Show what came of calls."""
        for result in results:
            self._console.print(result_panel(result))

    def figures(self, paths: Sequence[Path]) -> None:
        """Say where figures were saved."""
        for path in paths:
            self.note(f"figure saved: {path}")

    def note(self, text: str) -> None:
        """Say something that the model does not read."""
        self._new_line()
        self._console.print(plain(text, "dim"), soft_wrap=True)

    def ended(self, finish: Finish) -> None:
        """Say why it is the user's turn, where that is not plain."""
        if finish in _TOLD:
            self.note(_TOLD[finish])

    def _show(self, parts: Sequence[Said | Writing | Called]) -> None:
        for part in parts:
            match part:
                case Said(text):
                    self._console.print(plain(text), end="", soft_wrap=True)
                    self._at_line_start = text.endswith("\n")
                case Writing(raw):
                    self._show_unfinished(code_so_far(raw))
                case Called(raw):
                    self._close_live()
                    self._new_line()
                    (request,) = parse_calls(f"{OPEN}{raw}{CLOSE}", "shown", Limits(), TOOLS, session="shown")
                    self._console.print(code_view(request.call.code))

    def _show_unfinished(self, code: str) -> None:
        """The last lines of code that is being written; on terminals only: it is shown again when it is whole."""
        if not self._console.is_terminal or not code:
            return
        if self._live is None:
            self._new_line()
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        lines = code.splitlines()[-max(1, self._console.height - 2) :]
        self._live.update(code_view("\n".join(lines)), refresh=True)

    def _close_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _new_line(self) -> None:
        if not self._at_line_start:
            self._console.print()
        self._at_line_start = True
