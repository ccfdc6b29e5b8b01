"""The virtual stage keeps what a stage promises, and breaks what a fault plan says."""

import asyncio
import fcntl
from pathlib import Path
from typing import Any

import pytest

from actors.system.actor import Actor, ActorLost, ActorRef, DeadlineExceeded, HandlerFailed, handles
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.message import Done, Message, Request
from actors.system.stage import ActorStartFailed, Part
from actors.system.trace import EnoughTraced, Event, Trace
from actors.system.virtual_fixtures import play_twice
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_member import Network
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Break, Hang, Heard, Said, Say, SayLater, Told, Unheard, WhatWasTold


class Player(Actor):
    """Says, hears and breaks."""

    def __init__(self, start_s: float = 0.0, fail: str = "") -> None:
        self.start_s, self.fail = start_s, fail
        self.heard: list[str] = []
        self.stopped = 0

    async def start(self) -> None:
        await self.port.clock.sleep(self.start_s)
        if self.fail:
            raise ValueError(self.fail)

    async def stop(self) -> None:
        self.stopped += 1

    @handles(Say)
    async def on_say(self, message: Say) -> Said:
        self.heard.append(message.text)
        return Said(text=message.text, incarnation=self.port.incarnation)

    @handles(SayLater)
    async def on_say_later(self, message: SayLater) -> Said:
        await self.port.clock.sleep(message.turns)
        return Said(text=message.text, incarnation=self.port.incarnation)

    @handles(Hang)
    async def on_hang(self, _: Hang) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.port.tell(ActorRef("witness"), Told(text=f"{self.port.name} was cancelled"))

    @handles(Break)
    async def on_break(self, message: Break) -> None:
        raise ValueError(message.text)

    @handles(Told)
    async def on_told(self, message: Told) -> None:
        self.heard.append(message.text)

    @handles(WhatWasTold)
    async def on_what(self, _: WhatWasTold) -> Heard:
        return Heard(texts=tuple(self.heard))


class FailsLater(Actor):
    async def start(self) -> None:
        self.port.start_task(self._fail())

    async def _fail(self) -> None:
        await self.port.clock.sleep(1)
        raise RuntimeError("planted")


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


class Count(Request[Done], tag="test.virtual_count"):
    seconds: float


class Computes(Actor):
    """Work on the actor's own thread, as virtual time has it."""

    def __init__(self) -> None:
        self.done: list[tuple[float, float]] = []

    @handles(Count)
    async def on_count(self, message: Count) -> None:
        now = await self.port.offload(lambda: message.seconds, self.port.clock.now_ns)
        self.done.append((message.seconds, now / 1e9))


def play(scene, *parts: Part, explore: int | None = None, **options: Any) -> Any:
    """Run `scene(stage)` on a stage with these parts, twice; once if the test looks at the trace itself."""
    if "trace" not in options:
        return play_twice(scene, *parts, explore=explore, **options)

    async def main() -> Any:
        async with VirtualStage(seed=0, **options) as stage:
            await stage.spawn(*parts)
            return await scene(stage)

    return run_virtual(main(), explore=explore)


A, B, WITNESS = (Part(name=name, actor=Player, restarts=1) for name in ("a", "b", "witness"))
REF = ActorRef("a")


def test_an_ask_takes_two_ways_of_the_network() -> None:
    async def scene(stage: VirtualStage) -> tuple[str, float]:
        said = await stage.port.ask(REF, Say(text="hello"))
        return said.text, stage.loop.time()

    assert play(scene, A, network=Network(latency_s=0.25)) == ("hello", 0.5)


def test_errors_are_told_apart() -> None:
    async def scene(stage: VirtualStage) -> None:
        with pytest.raises(HandlerFailed, match="planted"):
            await stage.port.ask(REF, Break(text="planted"))
        with pytest.raises(HandlerFailed, match="does not handle"):
            await stage.port.ask(REF, Unheard())
        with pytest.raises(DeadlineExceeded, match="within 3 s"):
            await stage.port.ask(REF, Hang(), 3)
        with pytest.raises(ActorLost, match="does not know it"):
            await stage.port.ask(ActorRef("nobody"), Say(text=""))
        stage.port.tell(ActorRef("nobody"), Told(text="lost silently"))

    play(scene, A)


def test_deadlines_of_all_lengths_end_when_they_should() -> None:
    async def scene(stage: VirtualStage) -> dict[float, float]:
        ends: dict[float, float] = {}

        async def ask(start: float, deadline: float) -> None:
            await asyncio.sleep(start)
            with pytest.raises(DeadlineExceeded):
                await stage.port.ask(REF, Hang(), deadline)
            ends[start, deadline] = stage.loop.time()  # type: ignore[index]

        await asyncio.gather(*[ask(start, deadline) for start in (0, 1, 7) for deadline in (2, 5)])
        return ends

    ends = play(scene, A)
    assert {key: round(end, 6) for key, end in ends.items()} == {key: sum(key) for key in ends}


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


def test_a_failing_task_fails_its_actor_loudly() -> None:
    async def scene(stage: VirtualStage) -> str:
        await asyncio.sleep(2)
        return stage.deaths[0].reason

    assert "planted" in play(scene, Part(name="a", actor=FailsLater))


def test_messages_wait_until_the_actor_has_started() -> None:
    async def scene(stage: VirtualStage) -> float:
        spawned = asyncio.ensure_future(stage.spawn(Part(name="slow", actor=Player, arguments={"start_s": 4.0})))
        await asyncio.sleep(0)
        await stage.port.ask(ActorRef("slow"), Say(text="hello"))
        await spawned
        return stage.loop.time()

    assert play(scene) == pytest.approx(4.001)


def test_an_actor_that_cannot_start_is_an_error_with_its_traceback() -> None:
    async def scene(stage: VirtualStage) -> None:
        with pytest.raises(ActorStartFailed, match="planted"):
            await stage.spawn(B, Part(name="x", actor=Player, arguments={"fail": "planted"}))
        with pytest.raises(ActorLost):
            await stage.port.ask(ActorRef("b"), Say(text="nobody is left running"))
        with pytest.raises(ValueError, match="is taken"):
            await stage.spawn(A)

    play(scene, A)


def test_offloaded_work_takes_its_time_one_after_another() -> None:
    async def scene(stage: VirtualStage) -> list[tuple[float, float]]:
        await asyncio.gather(*[stage.port.ask(REF, Count(seconds=seconds)) for seconds in (3.0, 1.0)])
        actor = stage.actor(REF)
        assert isinstance(actor, Computes)
        return actor.done

    network = Network(latency_s=0.0)
    assert play(scene, Part(name="a", actor=Computes), network=network) == [(3.0, 3.0), (1.0, 4.0)]


def test_stopping_runs_each_actor_s_stop_once() -> None:
    async def main() -> int:
        stage = VirtualStage(seed=0)
        async with stage:
            await stage.spawn(A)
            actor = stage.actor(REF)
        await stage.close()
        assert isinstance(actor, Player)
        return actor.stopped

    assert run_virtual(main()) == 1


class NotSendable(Message, tag="test.virtual_not_sendable"):
    value: tuple[int, ...] | list[int]


def test_a_message_that_changes_on_the_wire_is_found() -> None:
    async def scene(stage: VirtualStage) -> None:
        with pytest.raises(AssertionError, match="changes on the wire"):
            stage.port.tell(REF, NotSendable(value=(1, 2)))

    play(scene, A, wire_every=1)


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


def test_a_frozen_actor_answers_when_it_thaws() -> None:
    async def scene(stage: VirtualStage) -> float:
        await stage.port.ask(REF, Say(text="hello"))
        return stage.loop.time()

    plan = ActorFaultPlan(faults=(ActorFault(kind="freeze", at=0, actor="a", seconds=7),))
    assert play(scene, A, plan=plan) == pytest.approx(7.002)


def test_a_trace_can_be_shown_from_one_event_on_and_ends_at_another() -> None:
    shown: list[str] = []

    async def scene(stage: VirtualStage) -> None:
        for index in range(20):
            await stage.port.ask(REF, Say(text=str(index)))

    whole: list[Event] = []
    trace = Trace()
    trace.observe(whole.append)
    play(scene, A, trace=trace)
    with pytest.raises(EnoughTraced):
        play(scene, A, trace=Trace(show=shown.append, first=10, last=13))
    assert [line.split(" Sa")[0] for line in shown] == [str(event).split(" Sa")[0] for event in whole[9:13]]


def test_a_trace_with_contents_tells_apart_what_was_said() -> None:
    def hashed(text: str, contents: bool) -> str:
        trace = Trace(contents=contents)

        async def scene(stage: VirtualStage) -> None:
            await stage.port.ask(REF, Say(text=text))

        play(scene, A, trace=trace)
        return trace.hash()

    assert hashed("x", False) == hashed("y", False)
    assert hashed("x", True) != hashed("y", True)
