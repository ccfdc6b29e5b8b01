"""A loop in virtual time: exact, the same each time, cut off from the world, never silent about a wait in vain."""

import asyncio
import contextvars
import gc
import signal
import socket
import subprocess
import sys
import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.system.virtual_confinement import NotVirtual
from actors.system.virtual_loop import OWNER, Stalled, VirtualLoop, interrupt, run_virtual


def test_time_jumps_from_timer_to_timer() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen = []
        for pause in (0.5, 3600.0, 1e-9):
            await asyncio.sleep(pause)
            seen.append(loop.now_ns())
        return seen

    assert run_virtual(main()) == [500_000_000, 3_600_500_000_000, 3_600_500_000_001]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
@settings(max_examples=60, deadline=None)
def test_timers_run_by_time_and_then_in_the_order_in_which_they_were_set(timers: list[tuple[int, bool]]) -> None:
    """Also those on the line, whose order the heap does not keep."""
    ran: list[tuple[int, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.set_line(3)
        context = asyncio.current_task().get_context()  # type: ignore[union-attr]
        for index, (when, on_line) in enumerate(timers):
            if on_line:
                loop.put_on_line(ran.append, (3, index), context=context)
            else:
                loop.call_at_ns(when, ran.append, (when, index))
        await asyncio.sleep(1)

    run_virtual(main())
    assert ran == sorted((3 if on_line else when, index) for index, (when, on_line) in enumerate(timers))


def test_a_cancelled_timer_neither_runs_nor_moves_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, pytest.fail, "it ran").cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtual(main()) == 2.0


@pytest.mark.parametrize("explore", [None, 0, 1])
def test_a_timer_that_is_cancelled_at_the_moment_at_which_it_is_due_does_not_run(explore: int | None) -> None:
    async def main() -> list[str]:
        loop, ran = asyncio.get_running_loop(), list[str]()
        loop.call_later(1.0, lambda: (ran.append("first"), second.cancel()))
        second = loop.call_later(1.0, ran.append, "second")
        await asyncio.sleep(2)
        return ran

    assert run_virtual(main(), explore=explore) == ["first"]


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def main() -> None:
        await asyncio.sleep(1.5)
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match=r"at 1\.500000 s"):
        run_virtual(main())


@pytest.mark.parametrize(
    "reach_out",
    [
        lambda: threading.Thread(target=print).start(),
        lambda: socket.socket(),
        lambda: subprocess.run(["true"], check=True),
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
        lambda: asyncio.to_thread(print).send(None),
    ],
    ids=["thread", "socket", "process", "executor", "threadsafe", "to_thread"],
)
def test_threads_sockets_processes_and_executors_raise(reach_out) -> None:
    async def main() -> None:
        with pytest.raises(NotVirtual):
            reach_out()

    run_virtual(main())


def test_the_world_is_back_after_the_run() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    run_virtual(main())
    thread = threading.Thread(target=sys.getrefcount, args=(None,))
    thread.start()
    thread.join()


def order_of(explore: int | None) -> list[str]:
    """Three actors with three callbacks each, all ready at the same moment."""
    ran: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for turn in range(3):
            for name in "abc":
                token = OWNER.set(name)
                loop.call_later(1.0, ran.append, f"{name}{turn}")
                OWNER.reset(token)
        await asyncio.sleep(2)

    run_virtual(main(), explore=explore)
    return ran


def test_exploring_shuffles_actors_and_keeps_the_order_within_each() -> None:
    orders = {tuple(order_of(seed)) for seed in range(20)}
    assert len(orders) > 10, "seeds give different orders"
    for order in orders:
        assert [each for each in order if each[0] == "b"] == ["b0", "b1", "b2"]
    assert order_of(7) == order_of(7)
    assert order_of(None) == [f"{name}{turn}" for turn in range(3) for name in "abc"]


@pytest.mark.parametrize("explore", [None, 1])
def test_a_task_keeps_its_own_context_whoever_wakes_it(explore: int | None) -> None:
    """Also one that began empty, and so counts as false."""
    variable = contextvars.ContextVar("variable", default="nobody's")

    async def wake(sleeper: asyncio.Future[None]) -> None:
        variable.set("the waker's")
        sleeper.set_result(None)

    async def main() -> str:
        variable.set("the sleeper's")
        sleeper = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wake(sleeper))
        await sleeper
        await task
        return variable.get()

    assert contextvars.Context().run(run_virtual, main(), explore=explore) == "the sleeper's"


def test_a_failing_callback_ends_the_run_and_leaves_no_task_behind(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def main() -> None:
        task = asyncio.ensure_future(waits())
        asyncio.get_running_loop().call_later(1.0, lambda: 1 / 0)
        await task

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())
    assert ended == ["waits"] and not caplog.records


def test_a_signal_ends_a_run_between_two_callbacks() -> None:
    """Raised within one, it might be taken for that one's own failure, or be lost."""
    taken: list[BaseException] = []

    def busy() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            sum(range(1000))  # Python looks for signals now and then
        except BaseException as error:
            taken.append(error)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, busy)
        await asyncio.sleep(2.0)
        pytest.fail("it went on")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_virtual(main())
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not taken


def test_a_run_that_is_cut_short_says_nothing_of_what_becomes_of_its_tasks(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(1.0)  # no time will pass any more

    async def main() -> None:
        task = asyncio.ensure_future(stubborn())
        asyncio.get_running_loop().call_later(1.0, lambda: 1 / 0)
        await task

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())
    gc.collect()
    assert not caplog.records


def test_tasks_of_an_owner_are_told_apart_and_oldest_first() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        mine = []
        for index in range(50):
            token = OWNER.set("me" if index % 2 else "you")
            task = loop.create_task(asyncio.sleep(1))
            OWNER.reset(token)
            if index % 2:
                mine.append(task)
        found = loop.tasks_of("me")
        return [mine.index(task) for task in found]

    assert run_virtual(main()) == list(range(25))


def test_random_choices_of_the_loop_are_its_own() -> None:
    """Exploring must not disturb the streams of anybody else."""
    stream = Random(3)
    before = [stream.random() for _ in range(3)]
    order_of(5)
    stream = Random(3)
    assert [stream.random() for _ in range(3)] == before
