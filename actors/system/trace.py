"""The trace of a virtual run: what happened, in order, as lines of text whose hash says whether two runs were the same.

Invariants:
- a line holds virtual time, names and tags only: no addresses, no wall clock, no counters that other runs share;
- observers hear of each event when it happens, before anything follows from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

from actors.system.message import Message, encode

Kind = Literal["ask", "tell", "answer", "failed", "lost", "late", "fault", "death", "start"]
"""`ask` and `tell` arrive, `answer` and `failed` leave whoever was asked; `lost` and `late` are what an asker gets
instead of an answer."""


class Event(NamedTuple):
    """One thing that happened."""

    number: int
    """From 1."""
    now_ns: int
    kind: Kind
    source: str
    target: str
    what: str
    """Tag of the message, or words."""
    message: Message | None = None
    request: Message | None = None
    """Of an answer, what it answers."""

    def __str__(self) -> str:
        return f"{self.number} {self.now_ns / 1e9:.9f} {self.kind} {self.source} > {self.target} {self.what}"


_event = partial(tuple.__new__, Event)
"""As `Event._make`, without a step of the interpreter."""


class EnoughTraced(Exception):
    """The run has reached the last event that was asked for."""


class Trace:
    """Counts and hashes events, and tells observers.

    Args:
        contents: hash what messages say, too, not only that they were said (an order of magnitude slower).
        show: called with the text of each event from number `first` on.
        last: raise `EnoughTraced` after this event.
    """

    def __init__(
        self,
        *,
        contents: bool = False,
        show: Callable[[str], None] | None = None,
        first: int = 1,
        last: int | None = None,
    ) -> None:
        self.events = 0
        self._over = False
        self._contents, self._show, self._first, self._last = contents, show, first, last
        self._digest = hashlib.blake2b(digest_size=16)
        self._lines: list[str] = []
        self._observers: list[Callable[[Event], None]] = []
        self._rules: dict[tuple[Kind, type[Message | None]], list[Callable[[Event], None]]] = {}
        self._watched = contents or show is not None or last is not None
        """Whether something is done with every event."""

    def observe(self, observer: Callable[[Event], None]) -> None:
        """Call `observer` with each event from now on; what it raises ends the run."""
        self._observers.append(observer)
        self._watched = True

    def listen(self, rules: Mapping[tuple[Kind, type[Message]], Callable[[Event], None]]) -> None:
        """As `observe`, for events of these kinds with messages of these types only: the others then cost nothing."""
        for key, rule in rules.items():
            self._rules.setdefault(key, []).append(rule)

    def add(
        self,
        now_ns: int,
        kind: Kind,
        source: str,
        target: str,
        what: str,
        message: Message | None = None,
        request: Message | None = None,
    ) -> None:
        """Note one event, unless the trace is over. Raises what an observer raises, and `EnoughTraced`: then it is."""
        if self._over:
            return
        self.events += 1
        lines = self._lines
        lines.append(f"{now_ns} {kind} {source} {target} {what}\n")
        if len(lines) >= 512:
            self._flush()
        rules = self._rules.get((kind, type(message)))
        if rules is None and not self._watched:
            return
        event = _event((self.events, now_ns, kind, source, target, what, message, request))
        try:
            if self._watched:
                self._show_and_observe(event)
            for rule in rules or ():
                rule(event)
        except BaseException:  # whatever an observer raises ends the run; nothing more is to be heard
            self._over = True
            raise
        if self._last is not None and self.events >= self._last:
            self._over = True
            raise EnoughTraced(f"event {self.events} was the last one asked for")

    def _show_and_observe(self, event: Event) -> None:
        """What is done with every event, where anything is."""
        message = event.message
        if self._contents and message is not None:
            self._lines.append(encode(message).hex() + "\n")
        if self._show is not None and event.number >= self._first:
            self._show(f"{event} {message!r}" if message is not None else str(event))
        for observer in self._observers:
            observer(event)

    def hash(self) -> str:
        """The hash of all lines so far, hexadecimal."""
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        self._digest.update("".join(self._lines).encode())
        self._lines.clear()
