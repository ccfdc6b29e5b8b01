"""What becomes of asks that are late and whose peer may be at work: they are given up when it does not get on.

Invariants:
- such an ask is sent once, and its answer taken whenever it comes: nothing is done twice since it takes long;
- whenever its deadline has passed again, the peer says what it has done (`Actor.work_done`); if that is what it said
  the last time, or it has said nothing twice in a row, the ask is given up. So a peer that hangs is found after twice
  the deadline (and the time of a look);
- a peer is asked once for all whose asks are late at that time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from actors.system.actor import ActorError, ActorRef
from actors.system.message import DescribeWork

logger = logging.getLogger(__name__)

LOOK_DEADLINE_S = 120.0
"""For what a peer has done: longer than a mailbox takes to give up."""


class Ask(Protocol):
    """Whoever waits for an answer."""

    tag: str
    seen: object
    """What the peer said the last time; at first something that no peer says."""

    def over(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def give_up(self) -> None: ...

    def wait_on(self) -> None:
        """For as long again."""
        ...


class Looks:
    """Decides about what one actor has asked.

    Args:
        ask: as `Port.ask`.
        spawn: starts a task beside the actor's handlers.
    """

    def __init__(self, ask: Callable[..., Any], spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._ask, self._spawn = ask, spawn
        self._late: dict[str, list[Ask]] = {}

    def late(self, peer: str, ask: Ask) -> None:
        """The deadline of an ask has passed: it is given up, or waited for, when the peer has been looked at."""
        others = self._late.get(peer)
        if others is not None:
            others.append(ask)
            return
        self._late[peer] = [ask]
        self._spawn(self._look(peer))

    async def _look(self, peer: str) -> None:
        done: int | None = None
        try:
            done = (await self._ask(ActorRef(peer), DescribeWork(), LOOK_DEADLINE_S)).done
        except ActorError as error:
            logger.warning("%s does not say what it has done: %s", peer, error)
        finally:
            late = [ask for ask in self._late.pop(peer) if not ask.over()]
        for ask in late:
            if ask.seen == done:
                ask.give_up()
            else:
                logger.info("%s takes long over %r (work done: %s)", peer, ask.tag, done)
                ask.seen = done
                ask.wait_on()


NEVER_SEEN = object()
"""The first value of `Ask.seen`."""


def gave_up(peer: str, tag: str, deadline_s: float, seen: object) -> str:
    """The text of a `DeadlineExceeded`."""
    within = f"{peer} has not answered {tag!r} within {deadline_s:g} s"
    return within if seen is NEVER_SEEN else f"{within}, and has done nothing for as long after that"
