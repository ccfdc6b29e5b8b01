"""A wish that nobody waits for is open nowhere."""

from __future__ import annotations

import asyncio

import pytest

import actors.leases
from actors.balancer import BalancerActor
from actors.leases import Leases
from actors.messages import AcquireLease, BalancerStatus, DescribeBalancer, JoinGenerator, ReleaseLease
from actors.system.actor import ActorRef, DeadlineExceeded
from policies.balancing import BalancerOptions, Capacity, Wish
from tests.support.in_process_stage import InProcessStage

BALANCER = ActorRef("balancer")


def wish(rollout: str) -> Wish:
    return Wish(rollout=rollout, prompt_tokens=8, max_tokens=128)


async def status(stage: InProcessStage) -> BalancerStatus:
    return await stage.port.ask(BALANCER, DescribeBalancer())


@pytest.mark.parametrize("ends", ["late", "cancelled"])
async def test_a_wish_that_was_given_up_is_withdrawn(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessStage() as stage:
        await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
        await stage.port.ask(
            BALANCER,
            JoinGenerator(
                capacity=Capacity(generator="g", incarnation=0, kv_tokens=128, block_tokens=32, max_sequence_tokens=128)
            ),
        )
        await stage.port.ask(BALANCER, AcquireLease(wish=wish("other")))  # and the generator is full
        if ends == "late":
            monkeypatch.setattr(actors.leases, "LEASE_DEADLINE_S", 0.01)
        waiting = asyncio.ensure_future(Leases(stage.port, BALANCER).acquire(wish("mine")))
        if ends == "cancelled":
            await asyncio.sleep(0.01)
            assert (await status(stage)).waiting == 1
            waiting.cancel()
        with pytest.raises(DeadlineExceeded if ends == "late" else asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.01)
        assert (await status(stage)).waiting == 0
        await stage.port.ask(BALANCER, ReleaseLease(rollout="other"))
        assert [load.sessions for load in (await status(stage)).loads] == [0], "nobody holds what nobody wanted"
