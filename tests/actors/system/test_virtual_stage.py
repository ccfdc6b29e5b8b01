"""The virtual stage keeps what a stage promises. What it breaks on purpose: `test_virtual_faults`."""

import asyncio

import pytest

from actors.system.actor import Actor, ActorLost, ActorRef, CannotGoOn, DeadlineExceeded, HandlerFailed, handles
from actors.system.message import Done, Message, Request
from actors.system.stage import ActorStartFailed, Part
from actors.system.trace import EnoughTraced, Event, Trace
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_member import Network
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Break, Hang, Refuse, Say, Told, Unheard
from tests.actors.system.virtual_players import REF, A, B, Player, play


class FailsLater(Actor):
    async def start(self) -> None:
        self.port.start_task(self._fail())

    async def _fail(self) -> None:
        await self.port.clock.sleep(1)
        raise RuntimeError("planted")


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


def test_an_ask_takes_two_ways_of_the_network() -> None:
    async def scene(stage: VirtualStage) -> tuple[str, float]:
        said = await stage.port.ask(REF, Say(text="hello"))
        return said.text, stage.loop.time()

    assert play(scene, A, network=Network(latency_s=0.25)) == ("hello", 0.5)


def test_errors_are_told_apart() -> None:
    async def scene(stage: VirtualStage) -> None:
        with pytest.raises(HandlerFailed, match="planted"):
            await stage.port.ask(REF, Break(text="planted"))
        with pytest.raises(CannotGoOn, match=r"^the disk is full$"):
            await stage.port.ask(REF, Refuse(text="the disk is full"))
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
