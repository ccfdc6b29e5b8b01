"""Plays the groups of a stage as `policies.group_flow` says, and hands them over to its steps.

Invariants:
- a group that was begun comes to its end, whatever becomes of it;
- a failure in a group that is under way is raised to whoever waits for groups: nothing waits in vain.
"""

from __future__ import annotations

import asyncio
import logging

from actors.sampling import Sampled, Sampler
from actors.system.actor import CannotGoOn
from policies.curriculum import ProblemStream
from policies.dialogue import DialogueLimits
from policies.group_flow import GroupFlow
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory

log = logging.getLogger(__name__)

TOO_OLD_TO_GO_ON = 20
"""So many steps' worth of groups that are too old, with no step between them: then weights do not arrive."""


class WeightsDoNotArrive(CannotGoOn):
    """Groups come too old, one after another: generators do not get the learner's weights."""


class GroupFeed:
    """The groups of one stage.

    Args:
        flow: what may be begun and taken.
        stage: name of the stage.
    """

    def __init__(
        self,
        sampler: Sampler,
        stream: ProblemStream,
        flow: GroupFlow,
        *,
        stage: str,
        options: ReinforcementOptions,
        limits: DialogueLimits,
    ) -> None:
        self._sampler, self._stream, self._flow = sampler, stream, flow
        self._stage, self._options, self._limits = stage, options, limits
        self._ready: dict[int, list[Trajectory]] = {}
        self._dropped_rollouts: list[str] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._first_of_step = 0

    def open_step(self) -> None:
        """What is begun from now on is made for another step."""
        self._first_of_step = self._flow.cursor

    async def groups(self, step: int, count: int) -> Sampled:
        """`count` groups for the step, in the order of their numbers, when they are there.

        Raises `ActorError` and `WeightsDoNotArrive`.
        """
        self._flow.want(count)
        while True:
            taken = self._flow.take()
            for number in self._flow.dropped:
                self._ready.pop(number, None)
            self._begin(step)  # also in place of those that were too old
            if taken is not None:
                break
            self._look_for_trouble()
            await self._news.wait()
            self._news.clear()
        dropped, self._dropped_rollouts = self._dropped_rollouts, []
        return Sampled([self._ready.pop(number) for number in taken], dropped)

    async def rest(self) -> int:
        """Let what is under way come to its end; returns how many groups nothing was learned from."""
        await asyncio.gather(*self._tasks)
        return len(self._flow.held)

    def _begin(self, step: int) -> None:
        numbers = self._flow.to_begin()
        if not self._options.max_staleness and numbers:
            self._start(numbers, step, numbers[0] - self._first_of_step)
            return
        for number in numbers:
            self._start([number], *divmod(number, self._options.prompts))

    def _start(self, numbers: list[int], step: int, first_group: int) -> None:
        task = asyncio.ensure_future(self._play(numbers, step, first_group))
        self._tasks[task] = None
        task.add_done_callback(self._over)

    async def _play(self, numbers: list[int], step: int, first_group: int) -> None:
        options = self._options
        sampled = await self._sampler.sample(
            [self._stream.problem(number) for number in numbers],
            options.sampled,
            stage=self._stage,
            step=step,
            limits=self._limits,
            temperature=options.temperature,
            first_group=first_group,
        )
        self._dropped_rollouts += sampled.dropped
        for number, group in zip(numbers, sampled.groups, strict=True):
            self._ready[number] = group
            self._flow.finished(number, oldest_version(group))

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        self._news.set()

    def _look_for_trouble(self) -> None:
        if self._failure is not None:
            raise self._failure
        too_old = len(self._flow.dropped)
        if too_old > TOO_OLD_TO_GO_ON * self._options.prompts:
            raise WeightsDoNotArrive(
                f"{too_old} groups of {self._stage} in a row were more than max_staleness = "
                f"{self._options.max_staleness} versions behind the learner; look for generators that do not get its "
                "weights in their logs"
            )


def oldest_version(group: list[Trajectory]) -> int | None:
    """The version of a group's oldest token; None if it has none. Lineages do not count: steps go on across them."""
    return min((version.step for trajectory in group for version in trajectory.versions), default=None)
