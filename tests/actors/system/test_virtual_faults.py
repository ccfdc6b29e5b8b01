"""Deaths on the virtual stage, and what else a fault plan says."""

import asyncio
import fcntl
from pathlib import Path

import pytest

from actors.system.actor import Actor, ActorLost, ActorRef, handles
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.stage import Part
from actors.system.trace import Event, Trace
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Hang, Said, Say, SayLater, Told, WhatWasTold
from tests.actors.system.virtual_players import REF, WITNESS, A, play


class LocksAFile(Actor):
    """The only one that has a file, as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def start(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def stop(self) -> None:
        self._file.close()

    @handles(Say)
    async def on_say(self, message: Say) -> Said:
        return Said(text=message.text, incarnation=self.port.incarnation)

    @handles(Hang)
    async def on_hang(self, _: Hang) -> None:
        await asyncio.Event().wait()


def test_a_killed_actor_fails_its_asks_is_restarted_and_says_nothing_more() -> None:
    async def scene(stage: VirtualStage) -> None:
        asked = asyncio.ensure_future(stage.port.ask(REF, Hang()))
        await asyncio.sleep(1)
        await stage.kill(REF)
        with pytest.raises(ActorLost, match="it was killed"):
            await asked
        with pytest.raises(ActorLost):
            await stage.port.ask(REF, Say(text="gone"))
        await asyncio.sleep(5)
        assert (await stage.port.ask(REF, Say(text="back"))).incarnation == 1
        heard = await stage.port.ask(ActorRef("witness"), WhatWasTold())
        assert heard.texts == (), "the dead don't speak, not even while they are cancelled"
        assert [(death.name, death.incarnation, death.restarting) for death in stage.deaths] == [("a", 0, True)]
        await stage.kill(REF)
        await asyncio.sleep(10)
        with pytest.raises(ActorLost):
            await stage.port.ask(REF, Say(text="gone for good"))

    play(scene, A, WITNESS)


def test_what_a_dead_actor_had_open_is_closed_before_its_next_incarnation_starts(tmp_path: Path) -> None:
    async def scene(stage: VirtualStage) -> int:
        asked = asyncio.ensure_future(stage.port.ask(REF, Hang()))
        await asyncio.sleep(1)
        await stage.kill(REF)
        with pytest.raises(LookupError, match="is dead"):
            stage.actor(REF)
        with pytest.raises(ActorLost):
            await asked
        await asyncio.sleep(5)
        return (await stage.port.ask(REF, Say(text="again"))).incarnation

    assert play(scene, Part(name="a", actor=LocksAFile, arguments={"path": tmp_path / "file"}, restarts=1)) == 1


def test_the_answer_of_a_dead_incarnation_is_not_heard() -> None:
    async def scene(stage: VirtualStage) -> None:
        asked = asyncio.ensure_future(stage.port.ask(REF, SayLater(text="late", turns=10)))
        await asyncio.sleep(1)
        await stage.kill(REF)
        with pytest.raises(ActorLost):
            await asked
        await asyncio.sleep(20)
        assert not [event for event in events if event.what == "test.said"]

    events: list[Event] = []
    trace = Trace()
    trace.observe(events.append)
    play(scene, A, trace=trace)


def told(plan: ActorFaultPlan) -> tuple[str, ...]:
    """What an actor hears of six messages, one each second, under a plan; with the seconds of its arrival."""

    async def scene(stage: VirtualStage) -> tuple[str, ...]:
        for index in range(6):
            stage.port.tell(REF, Told(text=str(index)))
            await asyncio.sleep(1)
        await asyncio.sleep(100)
        return (await stage.port.ask(REF, WhatWasTold())).texts

    return play(scene, A, plan=plan)


@pytest.mark.parametrize(
    ("fault", "heard"),
    [
        (ActorFault(kind="delay", at=1.5, actor="a", seconds=2.5), "012345"),  # what is behind it waits for it
        (ActorFault(kind="drop", at=1.5, actor="a"), "012345"),  # the mailbox sends it again
        (ActorFault(kind="double", at=1.5, actor="a", messages=2), "01223345"),
        (ActorFault(kind="lose", at=1.5, actor="a"), "01345"),
        (ActorFault(kind="freeze", at=1.5, actor="a", seconds=3), "012345"),
        (
            ActorFault(kind="kill", at=2.5, actor="a"),
            "",
        ),  # its successor hears nothing of before or meanwhile
        (ActorFault(kind="delay", at=0, actor="b"), "012345"),
    ],
    ids=lambda value: value.kind if isinstance(value, ActorFault) else "",
)
def test_each_kind_of_fault_does_what_it_says(fault: ActorFault, heard: str) -> None:
    assert "".join(told(ActorFaultPlan(faults=(fault,)))) == heard


def test_a_lost_ask_fails_when_the_mailbox_gives_up() -> None:
    async def scene(stage: VirtualStage) -> float:
        with pytest.raises(ActorLost, match="could not be reached"):
            await stage.port.ask(REF, Say(text="hello"))
        return stage.loop.time()

    assert play(scene, A, plan=ActorFaultPlan(faults=(ActorFault(kind="lose", at=0, actor="a"),))) == 60.0


def test_a_slow_actor_hears_and_answers_in_its_turns_only() -> None:
    async def scene(stage: VirtualStage) -> list[float]:
        times: list[float] = []
        for _ in range(3):
            await stage.port.ask(REF, Say(text="hello"))
            times.append(round(stage.loop.time(), 2))
            await asyncio.sleep(0.2)
        return times

    # It rests for the first 0.3 s of each turn of 0.4 s, until 0.9 s, which is within the third.
    plan = ActorFaultPlan(faults=(ActorFault(kind="slow", at=0, actor="a", seconds=0.9, times=4),))
    assert play(scene, A, plan=plan) == [0.3, 0.7, 0.9]


def test_a_frozen_actor_answers_when_it_thaws() -> None:
    async def scene(stage: VirtualStage) -> float:
        await stage.port.ask(REF, Say(text="hello"))
        return stage.loop.time()

    plan = ActorFaultPlan(faults=(ActorFault(kind="freeze", at=0, actor="a", seconds=7),))
    assert play(scene, A, plan=plan) == pytest.approx(7.002)
