"""The fixtures for virtual time find what is not the same twice, and the fault that breaks a scene."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.system.actor import Actor, ActorError, ActorRef, handles
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.stage import Part
from actors.system.virtual_stage import VirtualStage
from tests.actors.system.players import Said, Say


class Echo(Actor):
    """Says what it hears."""

    @handles(Say)
    async def on_say(self, message: Say) -> Said:
        return Said(text=message.text, incarnation=self.port.incarnation)


ECHO = Part(name="echo", actor=Echo, restarts=9)


async def patient(stage: VirtualStage) -> str:
    """Asks until it is answered."""
    while True:
        try:
            return (await stage.port.ask(ActorRef("echo"), Say(text="hello"), 30)).text
        except ActorError:
            await asyncio.sleep(1)


async def impatient(stage: VirtualStage) -> str:
    await asyncio.sleep(1)
    return (await stage.port.ask(ActorRef("echo"), Say(text="hello"), 30)).text


def test_a_scene_is_played_under_a_plan(play_virtually: Callable[..., Any]) -> None:
    frozen = ActorFaultPlan(faults=(ActorFault(kind="freeze", at=0, actor="echo", seconds=7),))
    assert play_virtually(patient, ECHO, plan=frozen, explore=3) == "hello"


def test_a_scene_that_is_not_the_same_twice_fails(play_virtually: Callable[..., Any]) -> None:
    times: list[int] = []

    async def remembers(stage: VirtualStage) -> None:
        times.append(0)
        await stage.port.ask(ActorRef("echo"), Say(text=f"time {len(times)}"))

    with pytest.raises(AssertionError, match="not the same when played again"):
        play_virtually(remembers, ECHO)


def test_a_patient_scene_survives_all_plans(play_under_faults: Callable[..., None]) -> None:
    play_under_faults(patient, ECHO, seeds=range(30), until=3.0)


def test_a_plan_that_breaks_a_scene_is_shrunk_and_shown(play_under_faults: Callable[..., None]) -> None:
    one_fault = r"(ActorLost|DeadlineExceeded): .*\nunder the plan\nat [0-9.]+ s: (kill|lose|delay|freeze)[^\n]*$"
    with pytest.raises(pytest.fail.Exception, match=one_fault):
        play_under_faults(impatient, ECHO, seeds=range(200), until=1.0)
