"""What a generator holds for rollouts, and that it holds nothing of those that are over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.balancer import BalancerActor
from actors.engines.simulated_engine import SimulatedOptions
from actors.generator import FORGOTTEN, GeneratorActor
from actors.messages import DescribeGenerator, ForgetRollout, SampleTurn, TurnSampled
from actors.system.actor import ActorRef
from policies.balancing import BalancerOptions, Lease
from policies.batching_records import BatchingLimits
from policies.scripted import CountedTokens, Rollout, Script, ScriptedTurn
from policies.step_cost import StepCost
from tests.support.in_process_stage import InProcessStage

GENERATOR = ActorRef("generator-0")
NO_TIME = StepCost(base=1e-6, sequence=0.0, context_token=0.0, prefill_token=0.0, prefill_pair=0.0)


class Short(Script):
    """Every turn has four tokens."""

    def rollout(self, sequence: str) -> Rollout:
        return Rollout(1, (ScriptedTurn(4),) * 8)


@pytest.fixture
async def stage() -> AsyncIterator[InProcessStage]:
    options = SimulatedOptions(limits=BatchingLimits(kv_blocks=100), max_sequence_tokens=256, cost=NO_TIME)
    async with InProcessStage() as made:
        balancer = await made.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
        await made.host("generator-0", GeneratorActor(model="", options=options, balancer=balancer, script=Short()))
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
