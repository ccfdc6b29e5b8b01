"""pytest fixtures for tests of actors in virtual time, with and without faults. In a conftest.py:

    pytest_plugins = ["actors.system.virtual_fixtures"]

Invariant: whatever is played is played twice, and the test fails if it was not the same both times, message for
message: what a test has seen, anybody can see again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from actors.system.actor_faults import ActorFaultPlan, shrink
from actors.system.stage import Part
from actors.system.trace import Trace
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage

type Scene = Callable[[VirtualStage], Awaitable[Any]]


def play_twice(scene: Scene, *parts: Part, explore: int | None = None, **options: Any) -> Any:
    """Play `scene` on a stage with `parts`, twice, each time on a stage of its own; returns what the first came to.

    Args:
        scene: it must not keep anything from one time to the next.
        explore: seed that the order of actors is drawn from.
        options: of `VirtualStage`; the seed is 0 if none is given.

    Raises what the scene raises; `AssertionError` if the second time is not as the first.
    """
    results, traces = [], []
    for _ in range(2):
        trace = Trace(contents=True)
        results.append(run_virtual(_on_stage(scene, parts, {"seed": 0, **options, "trace": trace}), explore=explore))
        traces.append((trace.hash(), trace.events))
    assert traces[0] == traces[1], f"not the same when played again: {traces[0]} and {traces[1]} (hash, events)"
    return results[0]


async def _on_stage(scene: Scene, parts: Sequence[Part], options: dict[str, Any]) -> Any:
    async with VirtualStage(**options) as stage:
        await stage.spawn(*parts)
        return await scene(stage)


@pytest.fixture
def play_virtually() -> Callable[..., Any]:
    """Plays a scene in virtual time: `play_virtually(scene, *parts, plan=plan, explore=7)`; see `play_twice`.

    Example:
        def test_the_echo_survives_a_freeze(play_virtually):
            async def scene(stage):
                return (await stage.port.ask(ActorRef("echo"), Ping(text="hello"))).text

            frozen = ActorFaultPlan(faults=(ActorFault(kind="freeze", at=0, actor="echo", seconds=7),))
            assert play_virtually(scene, Part(name="echo", actor=Echo), plan=frozen) == "hello"
    """
    return play_twice


@pytest.fixture
def play_under_faults() -> Callable[..., None]:
    """Plays a scene under many fault plans: `play_under_faults(scene, *parts, seeds=range(50), until=10.0)`.

    Each seed draws a plan of faults that begin before `until` seconds and hit the actors of `parts` (those of
    `killable` may be killed, by default all) and an order of actors. The scene must raise whenever something is wrong.
    The first plan under which it does fails the test; it is shrunk to the faults that matter and printed.
    """

    def play(
        scene: Scene,
        *parts: Part,
        seeds: Iterable[int],
        until: float,
        killable: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        for seed in seeds:
            plan = ActorFaultPlan.draw(seed, actors=[part.name for part in parts], until=until, killable=killable)

            def reason(part: ActorFaultPlan, seed: int = seed) -> str:
                try:
                    play_twice(scene, *parts, plan=part, explore=seed, **options)
                except Exception as error:  # whatever a scene raises is what the plan is shrunk to
                    return f"{type(error).__name__}: {error}"
                return ""

            if reason(plan):
                shrunk = shrink(plan, lambda part: bool(reason(part)))
                pytest.fail(f"seed {seed}: {reason(shrunk)}\nunder the plan\n{shrunk}")

    return play
