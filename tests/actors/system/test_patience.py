"""A deadline ends an ask of one that hangs, and no ask of one that is at work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.system.actor import Actor, ActorRef, DeadlineExceeded, handles
from actors.system.clock import ThreadWatch, ThreadWork
from actors.system.mailbox import Mailbox
from actors.system.message import Done, Request, WorkDone
from actors.system.patience import LOOK_DEADLINE_S
from actors.system.stage import Part
from actors.system.trace import Event, Trace
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Hang, Player
from tests.actors.system.virtual_players import play
from tests.actors.system.wires import StraightWire

WORKER = ActorRef("worker")
HOUR_S = 3600.0


class Compute(Request[Done], tag="test.patience_compute"):
    """Computes for so long, and then hangs, or is done."""

    seconds: float
    then_hangs: bool = False


class Worker(Actor):
    def __init__(self) -> None:
        self.asked = 0

    @handles(Compute)
    async def on_compute(self, message: Compute) -> None:
        self.asked += 1
        await self.port.offload(lambda: message.seconds, lambda: None)
        if message.then_hangs:
            await asyncio.Event().wait()


class Silent(Worker):
    """Does not say what it has done."""

    async def work_done(self) -> int:
        await asyncio.Event().wait()
        return 0


def part(actor: type[Actor] = Worker) -> Part:
    return Part(name="worker", actor=actor)


@pytest.mark.parametrize("explore", [None, 7])
def test_one_that_works_for_a_day_is_asked_once_and_answers(explore: int | None) -> None:
    async def scene(stage: VirtualStage) -> tuple[float, int]:
        await stage.port.ask(WORKER, Compute(seconds=24 * HOUR_S), HOUR_S, unless_at_work=True)
        worker = stage.actor(WORKER)
        assert isinstance(worker, Worker)
        return round(stage.loop.time(), 1), worker.asked

    assert play(scene, part(), explore=explore) == (24 * HOUR_S, 1)


def test_without_that_its_deadline_ends_the_ask() -> None:
    async def scene(stage: VirtualStage) -> None:
        with pytest.raises(DeadlineExceeded, match=r"within 3600 s$"):
            await stage.port.ask(WORKER, Compute(seconds=24 * HOUR_S), HOUR_S)

    play(scene, part())


@pytest.mark.parametrize(("works_s", "given_up_s"), [(0.0, 2 * HOUR_S), (4.5 * HOUR_S, 6 * HOUR_S)])
def test_one_that_hangs_is_given_up_within_two_deadlines_of_its_last_work(works_s: float, given_up_s: float) -> None:
    async def scene(stage: VirtualStage) -> float:
        with pytest.raises(DeadlineExceeded, match=r"worker .*'test\.patience_compute'.* has done nothing"):
            await stage.port.ask(WORKER, Compute(seconds=works_s, then_hangs=True), HOUR_S, unless_at_work=True)
        return stage.loop.time()

    assert play(scene, part()) == pytest.approx(given_up_s, abs=1.0)


def test_one_that_does_not_say_what_it_has_done_is_given_up_the_second_time() -> None:
    async def scene(stage: VirtualStage) -> float:
        with pytest.raises(DeadlineExceeded):
            await stage.port.ask(WORKER, Compute(seconds=9 * HOUR_S), HOUR_S, unless_at_work=True)
        return stage.loop.time()

    assert play(scene, part(Silent)) == pytest.approx(2 * (HOUR_S + LOOK_DEADLINE_S), abs=1.0)


def looks_in(scene: Callable[[VirtualStage], Awaitable[None]]) -> int:
    """How often a worker said what it had done."""
    looks: list[Event] = []

    async def main() -> None:
        trace = Trace()
        trace.listen({("answer", WorkDone): looks.append})
        async with VirtualStage(seed=0, trace=trace) as stage:
            await stage.spawn(part())
            await scene(stage)

    run_virtual(main())
    return len(looks)


def test_a_peer_is_looked_at_once_for_all_who_wait_for_it() -> None:
    async def scene(stage: VirtualStage) -> None:
        ask = stage.port.ask
        await asyncio.gather(*[ask(WORKER, Compute(seconds=60.0), HOUR_S, unless_at_work=True) for _ in range(90)])

    assert looks_in(scene) == 1


def test_for_one_that_waits_no_more_nobody_looks() -> None:
    async def scene(stage: VirtualStage) -> None:
        work = Compute(seconds=24 * HOUR_S)
        ask = asyncio.ensure_future(stage.port.ask(WORKER, work, HOUR_S, unless_at_work=True))
        await asyncio.sleep(1.5 * HOUR_S)
        ask.cancel()
        await asyncio.sleep(3 * HOUR_S)

    assert looks_in(scene) == 1


class Pair:
    """A mailbox that asks, and one that answers, of an actor that hangs and says what it is told to say."""

    def __init__(self) -> None:
        self.player = Player()
        self.player.port = _Thread()  # type: ignore[assignment] - all that a look needs of it
        self.bob = Mailbox("bob", 0, self.player.handle)
        self.bob.inbox.open()
        self.alice = Mailbox("alice")
        self.link = self.alice.introduce("bob", 0, StraightWire(self.bob))

    async def ask(self) -> Any:
        return await self.alice.ask(ActorRef("bob"), Hang(), 0.02, unless_at_work=True)

    async def close(self) -> None:
        await self.alice.close()
        await self.bob.close()


class _Thread:
    """A thread that works as long as it is looked at no more than `looks` times."""

    name, incarnation, looks, looked = "bob", 0, 0, 0

    def thread_work(self) -> ThreadWork:
        self.looked += 1
        return ThreadWork(0, min(self.looked, self.looks))


@pytest.mark.parametrize("looks", [1, 4])
async def test_a_mailbox_waits_as_long_as_its_peer_works_and_holds_nothing_after_that(looks: int) -> None:
    pair = Pair()
    pair.player.port.looks = looks  # type: ignore[attr-defined]
    with pytest.raises(DeadlineExceeded, match=r"bob .*'test\.hang' within 0\.02 s, and has done nothing"):
        await pair.ask()
    assert pair.player.port.looked == looks + 1  # type: ignore[attr-defined]
    assert not pair.link._asks
    await pair.close()


async def test_a_thread_that_computes_has_done_something_and_one_that_waits_has_not() -> None:
    watch, loop = ThreadWatch(), asyncio.get_running_loop()
    gate = asyncio.Event()

    def compute() -> None:
        while time.thread_time() < 1.2:
            pass
        loop.call_soon_threadsafe(gate.set)
        time.sleep(0.2)

    job = loop.run_in_executor(None, watch.do, compute)
    await gate.wait()
    assert watch.work() == ThreadWork(0, 1), "while it is at work"
    await job
    await loop.run_in_executor(None, watch.do, lambda: time.sleep(1.1))
    assert watch.work() == ThreadWork(2, 1)
