"""Whether a run can go on with the actors that are left.

Invariant: a run goes on as long as there is one actor of each kind that lives, or is about to be started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from actors.system.actor import CannotGoOn
from actors.system.stage import Death
from orchestration.cast import Cast


class RunCannotGoOn(CannotGoOn):
    """Nobody is left to do what the run needs; it can be resumed from its last checkpoint."""


class Standing:
    """Who is left of a cast. Made on the running loop."""

    def __init__(self, cast: Cast) -> None:
        self._left = {
            "environment": {part.name for part in cast.environments},
            "generator": {part.name for part in cast.generators},
            "rollout actor": {part.name for part in cast.rollouts},
        }
        for part in (cast.director, cast.balancer, cast.archive, cast.learner, *cast.other_learners):
            self._left[part.name] = {part.name}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def heard(self, death: Death) -> None:
        """Somebody died."""
        if death.restarting:
            return
        for kind, names in self._left.items():
            if death.name in names:
                names.remove(death.name)
                if not names:
                    who = f"the {kind}" if kind == death.name else f"the last {kind} ({death.name})"
                    self.end(RunCannotGoOn(f"{who} is dead, and is not started again: {death.in_a_line}"))

    def end(self, error: BaseException) -> None:
        """The run can't go on."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # whoever works under it raises it; after the run's end nobody has to

    async def while_it_lasts[T](self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, which is cancelled when the run can't go on; what was said to `end` is then raised."""
        task = asyncio.ensure_future(work)
        self._ended.add_done_callback(lambda _: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended.done():
                self._ended.result()
            raise
        finally:
            task.cancel()
