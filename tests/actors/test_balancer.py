"""The balancer answers late instead of waiting, and its gate drains."""

import asyncio

import pytest

import actors.balancer
from actors.balancer import BalancerActor
from actors.messages import (
    AcquireLease,
    BeginTurn,
    CloseGate,
    DescribeBalancer,
    DescribeGenerator,
    DescribeLeases,
    DescribeRun,
    GeneratorStatus,
    JoinGenerator,
    LeasesHeld,
    LeaveGenerator,
    OpenGate,
    ReleaseLease,
    RunView,
    TurnEnded,
)
from actors.system.actor import Actor, ActorRef, handles
from actors.system.message import DescribeWork
from policies.balancing import BalancerOptions, Capacity, HeldLease, Lease, Wish
from policies.trajectory import WeightsVersion
from tests.support.in_process_stage import InProcessStage

BALANCER = ActorRef("balancer")


def capacity(name: str = "g", incarnation: int = 0) -> Capacity:
    return Capacity(generator=name, incarnation=incarnation, kv_tokens=128, block_tokens=32, max_sequence_tokens=128)


def acquire(rollout: str, tokens: int = 64) -> AcquireLease:
    return AcquireLease(wish=Wish(rollout=rollout, prompt_tokens=8, max_tokens=tokens))


async def staged(stage: InProcessStage) -> None:
    await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
    await stage.port.ask(BALANCER, JoinGenerator(capacity=capacity()))


async def test_a_queued_rollout_is_answered_when_a_lease_comes_back() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        first, second = [await stage.port.ask(BALANCER, acquire(name)) for name in ("a", "b")]
        assert not first.queued and not second.queued
        third = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("c")))
        await asyncio.sleep(0.01)
        assert not third.done()
        stage.port.tell(BALANCER, ReleaseLease(rollout="a"))
        granted = await third
        assert granted.queued and granted.lease.rollout == "c"
        status = await stage.port.ask(BALANCER, DescribeBalancer())
        assert (status.granted_total, status.queued_total, status.peak_leases, status.waiting) == (3, 1, 2, 0)


async def test_asking_again_gives_the_same_lease() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        one = await stage.port.ask(BALANCER, acquire("a"))
        assert (await stage.port.ask(BALANCER, acquire("a"))).lease == one.lease


async def test_a_rollout_that_fits_nowhere_is_refused_at_once() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        refused = await stage.port.ask(BALANCER, acquire("big", 129))
        assert refused.lease is None and "may need 129 tokens" in refused.refusal


async def test_closing_the_gate_waits_for_leases_and_grants_nothing() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        await stage.port.ask(BALANCER, acquire("a"))
        closing = asyncio.ensure_future(stage.port.ask(BALANCER, CloseGate()))
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("b")))
        await asyncio.sleep(0.01)
        assert not closing.done() and not waiting.done(), "a free block is no reason to grant behind a closed gate"
        stage.port.tell(BALANCER, ReleaseLease(rollout="a"))
        await closing
        assert not waiting.done()
        await stage.port.ask(BALANCER, OpenGate(version=WeightsVersion(0, 1)))
        assert (await waiting).lease.rollout == "b"


async def test_leases_on_a_dead_generator_end_with_it() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        await stage.port.ask(BALANCER, acquire("a", 128))
        await stage.port.ask(BALANCER, LeaveGenerator(generator="g"))
        await stage.port.ask(BALANCER, CloseGate())
        await stage.port.ask(BALANCER, OpenGate(version=WeightsVersion(0, 1)))
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("a", 128)))
        await stage.port.ask(BALANCER, JoinGenerator(capacity=capacity(incarnation=1)))
        assert (await waiting).lease.incarnation == 1


async def test_a_rollout_that_gives_up_waiting_leaves_no_wish_behind() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        await stage.port.ask(BALANCER, acquire("a", 128))
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("b", 128)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        stage.port.tell(BALANCER, ReleaseLease(rollout="b"))
        stage.port.tell(BALANCER, ReleaseLease(rollout="a"))
        granted = await stage.port.ask(BALANCER, acquire("c", 128))
        assert granted.lease.rollout == "c"


def barrier_options() -> BalancerOptions:
    return BalancerOptions(strategy="static", batch=2)


async def test_turns_begin_together_at_a_barrier_and_once() -> None:
    async with InProcessStage() as stage:
        await stage.host("balancer", BalancerActor(options=barrier_options()))
        await stage.port.ask(BALANCER, JoinGenerator(capacity=capacity()))
        for name in ("a", "b"):
            assert (await stage.port.ask(BALANCER, acquire(name))).lease.turn_barrier
        first = asyncio.ensure_future(stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=1)))
        again = asyncio.ensure_future(stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=1)))
        await asyncio.sleep(0.01)
        assert not first.done() and not again.done()
        await stage.port.ask(BALANCER, BeginTurn(rollout="b", turn=1))
        await asyncio.gather(first, again)
        await stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=1))
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=2)))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "b has not arrived"
        stage.port.tell(BALANCER, ReleaseLease(rollout="b", tokens=50))
        await waiting


async def test_nobody_waits_at_the_barrier_of_a_dead_generator() -> None:
    async with InProcessStage() as stage:
        await stage.host("balancer", BalancerActor(options=barrier_options()))
        await stage.port.ask(BALANCER, JoinGenerator(capacity=capacity()))
        for name in ("a", "b"):
            await stage.port.ask(BALANCER, acquire(name))
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=1)))
        await asyncio.sleep(0.01)
        await stage.port.ask(BALANCER, LeaveGenerator(generator="g"))
        await waiting
        await stage.port.ask(BALANCER, BeginTurn(rollout="a", turn=2))


async def test_what_rollouts_say_of_their_lengths_lets_more_of_them_in() -> None:
    async with InProcessStage() as stage:
        await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="predictive")))
        roomy = Capacity(generator="g", incarnation=0, kv_tokens=8192, block_tokens=32, max_sequence_tokens=1024)
        await stage.port.ask(BALANCER, JoinGenerator(capacity=roomy))
        for index in range(200):
            lease = (await stage.port.ask(BALANCER, acquire(f"seen-{index}", 1024))).lease
            assert lease.wants_progress
            stage.port.tell(BALANCER, TurnEnded(rollout=f"seen-{index}", tokens=8))
            stage.port.tell(BALANCER, ReleaseLease(rollout=f"seen-{index}", tokens=64))
        waiting = [asyncio.ensure_future(stage.port.ask(BALANCER, acquire(f"w{index}", 1024))) for index in range(100)]
        # worst_case would grant 8
        answers = await asyncio.gather(*waiting[:20])
        assert all(answer.lease is not None for answer in answers)


class Rollouts(Actor):
    """Holds leases, and says which."""

    def __init__(self, *held: HeldLease) -> None:
        self.held = held

    @handles(DescribeLeases)
    async def on_describe_leases(self, _: DescribeLeases) -> LeasesHeld:
        return LeasesHeld(leases=self.held)


class Director(Actor):
    def __init__(self, gate_open: bool) -> None:
        self.gate_open = gate_open

    @handles(DescribeRun)
    async def on_describe(self, _: DescribeRun) -> RunView:
        return RunView(gate_open=self.gate_open, generators=("g",))


class Generator(Actor):
    """Answers all but the first `unheard` times that it is asked what it is."""

    def __init__(self, unheard: int = 0) -> None:
        self.unheard = unheard

    @handles(DescribeGenerator)
    async def on_describe(self, _: DescribeGenerator) -> GeneratorStatus:
        self.unheard -= 1
        if self.unheard >= 0:
            await asyncio.Event().wait()
        return GeneratorStatus(
            capacity=capacity(),
            engine="none",
            running=0,
            turns_served=0,
            generated_tokens=0,
            busy_seconds=0.0,
            kv_token_seconds=0.0,
            peak_memory_bytes=0,
            version=WeightsVersion(0, 0),
        )


async def started_again(
    stage: InProcessStage, *held: HeldLease, gate_open: bool = True, generator: Generator | None = None
) -> None:
    await stage.host("director", Director(gate_open))
    await stage.host("rollout-0", Rollouts(*held))
    await stage.host("g", generator or Generator())
    balancer = BalancerActor(
        options=BalancerOptions(strategy="worst_case"),
        director=ActorRef("director"),
        rollouts=[ActorRef("rollout-0"), ActorRef("rollout-that-died")],
    )
    await stage.host("balancer", balancer, incarnation=1)


def held(rollout: str, incarnation: int = 0) -> HeldLease:
    lease = Lease(rollout=rollout, generator="g", incarnation=incarnation, reserve=64, epoch=0)
    return HeldLease(wish=acquire(rollout).wish, lease=lease, tokens=8)


async def test_a_balancer_that_was_started_again_promises_nothing_that_rollouts_hold() -> None:
    async with InProcessStage() as stage:
        await started_again(stage, held("a"), held("b", incarnation=7))
        granted = await stage.port.ask(BALANCER, acquire("c"))
        assert granted.lease.epoch == 1
        status = await stage.port.ask(BALANCER, DescribeBalancer())
        assert [(load.sessions, load.promised) for load in status.loads] == [(2, 128)], "b's generator is gone"
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("d")))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await stage.port.ask(BALANCER, ReleaseLease(rollout="a"))
        assert (await waiting).lease.rollout == "d"


async def test_a_balancer_that_was_started_again_finds_the_gate_as_it_was() -> None:
    async with InProcessStage() as stage:
        await started_again(stage, gate_open=False)
        waiting = asyncio.ensure_future(stage.port.ask(BALANCER, acquire("a")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await stage.port.ask(BALANCER, OpenGate(version=WeightsVersion(0, 1)))
        assert (await waiting).lease is not None


async def test_a_balancer_that_was_started_again_has_a_generator_back_that_was_busy_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actors.balancer, "RECOVERY_DEADLINE_S", 0.02)
    async with InProcessStage() as stage:
        await started_again(stage, generator=Generator(unheard=2))
        assert (await stage.port.ask(BALANCER, acquire("a"))).lease is not None


async def test_a_lease_is_waited_for_as_long_as_generators_work_or_the_gate_is_to_be_opened() -> None:
    async with InProcessStage() as stage:
        await staged(stage)
        generator = await stage.host("g", Generator())

        async def work_done() -> int:
            return (await stage.port.ask(BALANCER, DescribeWork())).done

        idle = await work_done()
        assert await work_done() == idle
        await stage.port.ask(BALANCER, acquire("a"))
        granted = await work_done()
        assert granted > idle
        await stage.actors[generator.name].port.offload(lambda: 0.0, lambda: None)
        assert await work_done() > granted
        closing = asyncio.ensure_future(stage.port.ask(BALANCER, CloseGate()))
        drained = await work_done()
        assert await work_done() == drained, "it is not drained: a lease is out, and its generator does nothing"
        await stage.port.ask(BALANCER, ReleaseLease(rollout="a"))
        await closing
        assert await work_done() != await work_done()
