"""The answers of steps that are done once, however often they are asked for.

Invariants:
- a repeat of a step, even while the first is at work, gets the first one's answer; a step that failed has changed
  nothing, and its id may be tried again;
- of the steps that are through only the last `KEPT` are held: whoever asks for steps waits for one before it asks for
  the next, so that earlier ones are asked for no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

KEPT = 16


class StepAnswers[Answer]:
    """Answers by the ids of their steps."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    async def once(self, step_id: str, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer of a step, which is done now if it was not asked for before. Raises what `work` raises."""
        answer = self._answers.get(step_id)
        if answer is None:
            # A task of its own: whoever asked first may be gone before the step is done, and the step must still count.
            answer = self._answers[step_id] = asyncio.ensure_future(work())
            answer.add_done_callback(lambda done: self._through(step_id, done))
        return await asyncio.shield(answer)

    def clear(self) -> None:
        """What was done so far does not count any more."""
        self._answers.clear()

    def _through(self, step_id: str, answer: asyncio.Future[Answer]) -> None:
        if self._answers.get(step_id) is not answer:
            return  # it does not count any more
        if answer.cancelled() or answer.exception() is not None:
            del self._answers[step_id]
            return
        through = [known for known, other in self._answers.items() if other.done()]
        for known in through[:-KEPT]:
            del self._answers[known]
