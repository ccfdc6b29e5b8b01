"""What anybody who is watched is asked."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request


class Identity(Message, tag="watched.identity"):
    incarnation: int


class Identify(Request[Identity], tag="watched.identify"):
    lane: ClassVar[Literal["work", "control"]] = "control"


class AwaitEnd(Request[Done], tag="watched.await_end"):
    """Never answered: whoever asks hears of the actor's end, since the ask fails with it."""

    lane: ClassVar[Literal["work", "control"]] = "control"
