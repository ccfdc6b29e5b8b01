"""What a generator holds for rollouts, and that it holds nothing of those that are over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import actors.generator
from actors.balancer import BalancerActor
from actors.engines.simulated_engine import SimulatedOptions
from actors.generator import FORGOTTEN, GeneratorActor
from actors.messages import (
    DescribeBalancer,
    DescribeGenerator,
    ForgetRollout,
    PublishWeights,
    SampleTurn,
    TurnSampled,
    UpdateWeights,
    WeightsPublished,
)
from actors.system.actor import Actor, ActorRef, handles
from policies.balancing import BalancerOptions, Lease
from policies.batching_records import BatchingLimits
from policies.scripted import CountedTokens, Rollout, Script, ScriptedTurn
from policies.step_cost import StepCost
from policies.trajectory import WeightsVersion
from tests.support.in_process_stage import InProcessStage

GENERATOR = ActorRef("generator-0")
NO_TIME = StepCost(base=1e-6, sequence=0.0, context_token=0.0, prefill_token=0.0, prefill_pair=0.0)


class Short(Script):
    """Every turn has four tokens."""

    def rollout(self, sequence: str) -> Rollout:
        return Rollout(1, (ScriptedTurn(4),) * 8)


OPTIONS = SimulatedOptions(limits=BatchingLimits(kv_blocks=100), max_sequence_tokens=256, cost=NO_TIME)


@pytest.fixture
async def stage() -> AsyncIterator[InProcessStage]:
    async with InProcessStage() as made:
        balancer = await made.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
        await made.host("generator-0", GeneratorActor(model="", options=OPTIONS, balancer=balancer, script=Short()))
        yield made


def turn(rollout: str, number: int = 0, incarnation: int = 0) -> SampleTurn:
    return SampleTurn(
        lease=Lease(rollout=rollout, generator="generator-0", incarnation=incarnation, reserve=0, epoch=0),
        turn=number, known=0, ids=b"", max_tokens=16, temperature=1.0, stop_ids=(), seed=0,
        counted=CountedTokens(prompt="p", prompt_tokens=8, sequence=rollout, turns=number, length=8 + 4 * number),
    )  # fmt: skip


async def sample(stage: InProcessStage, request: SampleTurn) -> TurnSampled:
    return await stage.port.ask(GENERATOR, request, 30)


async def forget(stage: InProcessStage, rollout: str) -> None:
    await stage.port.ask(GENERATOR, ForgetRollout(rollout=rollout), 30)


def held(stage: InProcessStage) -> int:
    generator = stage.actors["generator-0"]
    assert isinstance(generator, GeneratorActor)
    return len(generator._turns) + len(generator._histories)


async def test_of_rollouts_that_are_over_nothing_is_held(stage: InProcessStage) -> None:
    for number in range(FORGOTTEN + 10):
        for each in range(2):
            assert (await sample(stage, turn(f"a-{number}", each))).finish == "stop"
        await forget(stage, f"a-{number}")
    assert held(stage) == 0
    generator = stage.actors["generator-0"]
    assert isinstance(generator, GeneratorActor) and len(generator._forgotten) == FORGOTTEN


async def test_a_request_that_was_overtaken_by_the_end_of_its_rollout_begins_nothing(stage: InProcessStage) -> None:
    await sample(stage, turn("a"))
    for rollout in ("a", "b"):  # one that was here, and one of which nothing had come yet
        await forget(stage, rollout)
        assert (await sample(stage, turn(rollout, 1))).finish == "aborted"
    assert held(stage) == 0
    status = await stage.port.ask(GENERATOR, DescribeGenerator(), 30)
    assert (status.turns_served, status.running) == (1, 0)


async def test_a_lease_of_an_earlier_incarnation_leaves_nothing_behind(stage: InProcessStage) -> None:
    assert (await sample(stage, turn("a", incarnation=7))).finish == "history_missing"
    assert held(stage) == 0


async def test_a_turn_that_is_asked_for_twice_is_sampled_once(stage: InProcessStage) -> None:
    first, second = await asyncio.gather(sample(stage, turn("a")), sample(stage, turn("a")))
    assert first == second == await sample(stage, turn("a"))
    assert (await stage.port.ask(GENERATOR, DescribeGenerator(), 30)).turns_served == 1


class BusyLearner(Actor):
    """Gives its first weights when it `is_done`."""

    def __init__(self) -> None:
        self.is_done, self.asked = asyncio.Event(), 0

    @handles(PublishWeights)
    async def on_publish(self, _: PublishWeights) -> WeightsPublished:
        self.asked += 1
        await self.is_done.wait()
        return WeightsPublished(version=WeightsVersion(0, 1), blob=(await self.port.blobs.put({})).key)


@pytest.mark.parametrize("overtaken", [False, True])
async def test_one_that_is_started_again_while_the_learner_is_busy_joins_with_the_learner_s_weights_alone(
    overtaken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.generator, "SOON_S", 0.01)
    async with InProcessStage() as stage:
        learner = BusyLearner()
        balancer = await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
        ref = await stage.host("learner", learner)
        generator = GeneratorActor(model="", options=OPTIONS, balancer=balancer, learner=ref, script=Short())
        await stage.host("generator-0", generator, incarnation=1)
        assert not (await stage.port.ask(balancer, DescribeBalancer())).loads
        if overtaken:  # by the director, whose supervision has it join then
            newer = UpdateWeights(version=WeightsVersion(0, 2), blob=(await stage.port.blobs.put({})).key)
            await stage.port.ask(GENERATOR, newer)
        learner.is_done.set()
        await asyncio.gather(*stage.tasks)
        status = await stage.port.ask(GENERATOR, DescribeGenerator())
        assert status.version == WeightsVersion(0, 2 if overtaken else 1)
        assert len((await stage.port.ask(balancer, DescribeBalancer())).loads) == (0 if overtaken else 1)
