"""Which sessions have a process, and what a new one has to run again."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from env.session_books import SessionBooks
from env.tool_call import Cell, Limits

PLACES = 3
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


def cell(text: str) -> Cell:
    return Cell(code=text, limits=Limits())


class SessionsOfAHost(RuleBasedStateMachine):
    """Books beside what they are about: `processes` holds what each process has really run."""

    def __init__(self) -> None:
        super().__init__()
        self.books = SessionBooks(PLACES)
        self.processes: dict[str, list[Cell]] = {}
        self.wanted: dict[str, list[Cell]] = {}
        """What each session's names come from: all cells that did not end their process."""
        self.began: dict[str, bool] = {}
        """Whether a session has had a process."""
        self.running: set[str] = set()
        self.used: list[str] = []
        """Waiting sessions, the longest unused first."""
        self.count = 0

    def waiting(self) -> list[str]:
        return [name for name in self.used if name in self.processes and name not in self.running]

    @precondition(lambda self: len(self.running) < PLACES)
    @rule(name=NAMES)
    def begin(self, name: str) -> None:
        if name in self.running:
            return
        had, waiting = name in self.processes, self.waiting()
        began = self.began.get(name, False)
        begin = self.books.begin(name)
        if begin.evict:
            assert begin.evict == waiting[0], "the one that was unused longest goes"
            assert not had and len(self.processes) == PLACES, "nobody goes without need"
            del self.processes[begin.evict]
        assert (begin.replay is None) == had
        assert begin.restarted == (began and not had)
        if begin.replay is not None:
            self.processes[name] = list(begin.replay)
        self.wanted.setdefault(name, [])
        self.began[name] = True
        self.running.add(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from(["alive", "alive", "dead", "failed", "looked", "looked, and dead"]))
    def end_cell(self, data: st.DataObject, end: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(name)
        self.count += 1
        ran = cell(str(self.count))
        if end == "failed":
            self.books.failed(name)
        elif end.startswith("looked"):
            self.books.looked(name, alive=end == "looked")
        else:
            self.books.finished(name, ran, alive=end == "alive")
        if end in ("alive", "looked"):
            if end == "alive":
                self.processes[name].append(ran)
                self.wanted[name].append(ran)
            self.used = [each for each in self.used if each != name] + [name]
        else:
            del self.processes[name]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave_out(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        if self.wanted[name]:
            index = data.draw(st.integers(0, len(self.wanted[name]) - 1))
            del self.wanted[name][index]
            assert self.books.left_out(name, index) == tuple(self.wanted[name])
            self.processes[name] = list(self.wanted[name])  # made anew, without it

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        there = name in self.waiting()
        assert self.books.lost(name) == there
        if there:
            del self.processes[name]

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if name not in self.running:
            self.books.forget(name)
            self.processes.pop(name, None)
            self.wanted.pop(name, None)
            self.began.pop(name, None)

    @rule(name=NAMES, codes=st.lists(st.text(max_size=2), max_size=3), began=st.booleans())
    def adopt(self, name: str, codes: list[str], began: bool) -> None:
        if name not in self.running:
            self.began[name] = began
            self.wanted[name] = [cell(code) for code in codes]
            self.books.adopt(name, tuple(self.wanted[name]), began=began)
            self.processes.pop(name, None)

    @rule(excess=st.integers(-5, 40), sizes=st.lists(st.integers(0, 20), min_size=5, max_size=5))
    def relieve(self, excess: int, sizes: list[int]) -> None:
        held, waiting = dict(zip("abcde", sizes, strict=True)), self.waiting()
        gone = self.books.to_relieve(excess, held)
        assert list(gone) == waiting[: len(gone)], "the longest unused go first"
        freed = [held[name] for name in gone]
        assert sum(freed) >= excess or len(gone) == len(waiting), "enough, or all that wait"
        assert not gone or sum(freed[:-1]) < excess, "no more than needed"
        for name in gone:
            del self.processes[name]

    @invariant()
    def as_many_processes_as_the_books_say_and_no_more_than_places(self) -> None:
        assert self.books.live == len(self.processes) <= PLACES

    @invariant()
    def every_process_has_run_what_its_session_is_made_of(self) -> None:
        for name in self.processes:
            assert self.processes[name] == self.wanted[name] == list(self.books.cells(name))


TestSessionBooks = SessionsOfAHost.TestCase
TestSessionBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_books_without_a_place_are_refused():
    with pytest.raises(ValueError, match="most_live must be at least 1, not 0"):
        SessionBooks(0)
