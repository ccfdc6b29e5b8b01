"""Which sessions have a process, which one gives its place up, and what has to be run again to rebuild one. Pure.

Invariants:
- at most `most_live` sessions have a process; one whose cell is running never loses its place to another;
- a session's cells are those that its state is made of, in order: each ran to its end and left its process alive
  (also if it raised: what it did before that stays); a cell that ended the process is not among them;
- a process that is there has run just these cells; one that is made anew has to run all of them first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from env.tool_call import Cell


class Begin(NamedTuple):
    """What has to be done before a session's next cell."""

    evict: str
    """The session whose process is to be ended first; empty if there is room."""
    replay: tuple[Cell, ...] | None
    """The cells that a new process has to run first; None if the old one is there."""
    restarted: bool
    """Whether the session had a process before, and has lost it."""


@dataclass
class _Session:
    cells: list[Cell] = field(default_factory=list)
    had_process: bool = False


class SessionBooks:
    """Books of sessions by name.

    Example:
        books = SessionBooks(most_live=2)
        begin = books.begin("a")         # evict, replay
        books.finished("a", cell, alive=True)
    """

    def __init__(self, most_live: int) -> None:
        """Raises `ValueError` for fewer than one."""
        if most_live < 1:
            raise ValueError(f"most_live must be at least 1, not {most_live}")
        self._most_live = most_live
        self._sessions: dict[str, _Session] = {}
        self._busy: set[str] = set()
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Those with a process that waits, the longest unused first."""

    @property
    def live(self) -> int:
        """Sessions with a process."""
        return len(self._busy) + len(self._idle)

    def cells(self, name: str) -> tuple[Cell, ...]:
        """What a session's state is made of; empty for one that is not known."""
        return tuple(self._sessions[name].cells) if name in self._sessions else ()

    def adopt(self, name: str, cells: tuple[Cell, ...], *, began: bool) -> None:
        """From now on a session is what these cells make of it; a process of it that waits is to be ended.

        `began`: whether it had a process before, here or elsewhere.
        """
        assert name not in self._busy, f"a cell of session {name} is running"
        self._sessions[name] = _Session(list(cells), had_process=began)
        self._leave(name)

    def begin(self, name: str) -> Begin:
        """A cell is about to run. Places must be enough for all sessions that are busy at once."""
        assert name not in self._busy, f"session {name} runs one cell at a time"
        session = self._sessions.setdefault(name, _Session())
        if self._leave(name):
            self._busy.add(name)
            return Begin("", None, False)
        evict = ""
        if self.live == self._most_live:
            assert self._idle, f"{self._most_live} sessions are busy, and there are no more places"
            evict, _ = self._idle.popitem(last=False)
        self._busy.add(name)
        restarted, session.had_process = session.had_process, True
        return Begin(evict, tuple(session.cells), restarted)

    def finished(self, name: str, cell: Cell, *, alive: bool) -> None:
        """A cell has ended; `alive` if its process has not."""
        self._busy.remove(name)
        if alive:
            self._sessions[name].cells.append(cell)
            self._idle[name] = None

    def looked(self, name: str, *, alive: bool) -> None:
        """What has ended was no cell: nothing of it is run again. Its process goes on waiting if it is `alive`."""
        self._busy.remove(name)
        if alive:
            self._idle[name] = None

    def failed(self, name: str) -> None:
        """The sandbox has failed a cell: the process is gone, and it is as if the cell had not been."""
        self._busy.remove(name)

    def left_out(self, name: str, index: int) -> tuple[Cell, ...]:
        """The cell at `index` ended the process when it was run again: it is no part of the state. Returns the rest."""
        del self._sessions[name].cells[index]
        return self.cells(name)

    def lost(self, name: str) -> bool:
        """The process of a session that waits has ended, or is about to be; returns whether there was one."""
        return self._leave(name)

    def to_relieve(self, excess_bytes: int, held: Mapping[str, int]) -> tuple[str, ...]:
        """Take the places of as many waiting sessions as hold `excess_bytes` together, the longest unused first.

        `held`: bytes, by name. Their processes are to be ended.
        """
        leaving: list[str] = []
        for name in list(self._idle):
            if excess_bytes <= 0:
                break
            excess_bytes -= held.get(name, 0)
            leaving.append(name)
            self._leave(name)
        return tuple(leaving)

    def forget(self, name: str) -> None:
        """A session is over; a process of it that waits is to be ended."""
        assert name not in self._busy, f"a cell of session {name} is running"
        self._sessions.pop(name, None)
        self._leave(name)

    def _leave(self, name: str) -> bool:
        if name not in self._idle:
            return False
        del self._idle[name]
        return True
