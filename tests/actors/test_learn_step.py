"""A batch is in the object store for as long as its step takes, whatever becomes of the step."""

from __future__ import annotations

import asyncio

import pytest

from actors.learn_step import learn
from actors.messages import Learn, Learned
from actors.system.actor import Actor, ActorRef, BlobRef, HandlerFailed, handles
from policies.batch import TrainingSequence
from policies.trajectory import WeightsVersion
from tests.actors.learning.samples import batch
from tests.support.in_process_stage import InProcessStage

LEARNER = ActorRef("learner")


class Trainee(Actor):
    """Notes what it was given; fails, or takes its time, if it is told to."""

    def __init__(self, fails: bool = False, slow: bool = False) -> None:
        self.fails, self.slow = fails, slow
        self.began = asyncio.Event()
        self.seen: list[tuple[TrainingSequence, ...]] = []

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        self.seen.append(await self.port.blobs.get(BlobRef(message.blob)))
        self.began.set()
        if self.fails:
            raise ValueError("no")
        if self.slow:
            await asyncio.Event().wait()
        return Learned(version=WeightsVersion(0, 1), metrics={})


async def test_the_batch_is_there_for_the_step_and_gone_after_it() -> None:
    async with InProcessStage() as stage:
        trainee = Trainee()
        await stage.host("learner", trainee)
        sequences = batch(0)
        await learn(stage.port, LEARNER, step_id="rl/0", kind="reinforce", batch=sequences)
        assert trainee.seen == [tuple(sequences)] and not stage.blobs.values


async def test_a_step_that_failed_or_was_given_up_leaves_no_batch_behind() -> None:
    async with InProcessStage() as stage:
        await stage.host("learner", Trainee(fails=True))
        with pytest.raises(HandlerFailed):
            await learn(stage.port, LEARNER, step_id="rl/0", kind="reinforce", batch=batch(0))
        assert not stage.blobs.values
        slow = Trainee(slow=True)
        await stage.host("learner", slow)
        step = asyncio.ensure_future(learn(stage.port, LEARNER, step_id="rl/0", kind="reinforce", batch=batch(0)))
        await slow.began.wait()
        assert len(stage.blobs.values) == 1
        step.cancel()  # as when the learner is known to be dead
        await asyncio.gather(step, return_exceptions=True)
        assert not stage.blobs.values
