"""Each invariant of virtual runs catches the bug that it is there for; without bugs, none complains."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

import orchestration.simulation as simulation
from actors.balancer import BalancerActor
from actors.director import DirectorActor
from actors.engines.engine import EngineUsage
from actors.engines.simulated_engine import SimulatedEngine
from actors.generator import GeneratorActor
from actors.leases import Leases
from actors.messages import (
    BalancerStatus,
    Learn,
    Learned,
    LeaseGranted,
    OpenGate,
    ReleaseLease,
    RolloutFinished,
    RunRollout,
    UpdateWeights,
)
from actors.rollout import RolloutActor
from actors.simulated_learner import SimulatedLearnerActor
from actors.system.actor import Actor, handles
from actors.system.message import Done
from orchestration.cast import Cast
from orchestration.invariants import Violation
from orchestration.simulated_cast import simulated_cast
from orchestration.simulation import Rehearsal, Setting, rehearse_twice
from policies.balancing import StrategyName
from policies.run_progress import Report, StepFigures
from policies.trajectory import WeightsVersion
from tests.orchestration.small_recipe import small_recipe


def rehearse_with(monkeypatch: pytest.MonkeyPatch, players: dict[str, type[Actor]], steps: int = 2) -> Rehearsal:
    """A small run in which these actors play parts of the cast."""

    def planted(*arguments, **options) -> Cast:
        cast = simulated_cast(*arguments, **options)
        for role, actor in players.items():
            parts = getattr(cast, role)
            if isinstance(parts, tuple):
                cast = replace(cast, **{role: tuple(replace(part, actor=actor) for part in parts)})
            else:
                cast = replace(cast, **{role: replace(parts, actor=actor)})
        return cast

    monkeypatch.setattr(simulation, "simulated_cast", planted)
    recipe = small_recipe()
    return rehearse_twice(Setting(recipe=recipe, stage="rl", steps=steps, balancer=recipe.balancer))


@pytest.mark.parametrize("strategy", get_args(StrategyName))
def test_no_invariant_complains_about_any_strategy(strategy: str) -> None:
    recipe = small_recipe(strategy)
    found = rehearse_twice(Setting(recipe=recipe, stage="rl", steps=2, balancer=recipe.balancer))
    assert found.figures["rollouts"] == 2 * 4 * 8
    assert found.figures["ratio"] >= 1.0, "no schedule beats the lower bound"


class ForgetfulLeases(Leases):
    """Forgets to give back one lease in eight: those of sample 3."""

    def give_back(self, granted: LeaseGranted, tokens: int | None) -> None:
        assert granted.lease is not None
        if "/3@" not in granted.lease.rollout:
            super().give_back(granted, tokens)


class KeepsLeases(RolloutActor):
    async def start(self) -> None:
        await super().start()
        self.leases = ForgetfulLeases(self.port, self._balancer)


class LosesWakeUps(BalancerActor):
    """Takes leases back and tells nobody who waits."""

    @handles(ReleaseLease)
    async def on_release(self, message: ReleaseLease) -> None:
        self._release(message.rollout, message.tokens)


class LearnsTwice(SimulatedLearnerActor):
    """Trains again when it is asked again."""

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        await self._learn(message)
        return await self._learn(message)


class GoesBack(DirectorActor):
    """Opens the gate with the first version again and again."""

    async def _sync(self, *, in_flight: bool = False) -> WeightsVersion:
        version = await super()._sync(in_flight=in_flight)
        await self.port.ask(self._balancer, OpenGate(version=WeightsVersion(0, 0)))
        return version


class KeepsOldWeights(GeneratorActor):
    """Says that it took the weights, and did not."""

    @handles(UpdateWeights)
    async def on_update(self, _: UpdateWeights) -> Done:
        return Done()


class Overfull(SimulatedEngine):
    """Holds more than it has."""

    def usage(self) -> EngineUsage:
        usage = super().usage()
        return usage._replace(kv_used_tokens=usage.kv_used_tokens + 8192)


class OverfullGenerator(GeneratorActor):
    async def start(self) -> None:
        await super().start()
        self._engine.__class__ = Overfull  # the same engine, with other books


class WaitsForAll(BalancerActor):
    """Grants nothing while any lease is out."""

    async def start(self) -> None:
        await super().start()
        grants = self._strategy.grants
        self._strategy.grants = lambda: () if self._leases else grants()


class DoublesRollouts(DirectorActor):
    """Learns from the batch of the step before once more."""

    async def start(self) -> None:
        await super().start()
        put, seen = self.port.blobs.put, []

        async def doubled(value):
            seen.append(value)
            return await put(seen[0])

        self.port.blobs.put = doubled


class PromisesTooMuch(BalancerActor):
    """Has promised more than its strategy may."""

    def status(self) -> BalancerStatus:
        status = super().status()
        loads = tuple(load.model_copy(update={"promised": load.capacity.kv_tokens + 1}) for load in status.loads)
        return status.model_copy(update={"loads": loads})


class ForgetsARollout(DirectorActor):
    """Says of no rollout that it was dropped."""

    def _report(self, *reports: Report) -> None:
        for report in reports:
            assert isinstance(report, StepFigures), "nothing goes back to a checkpoint here"
            super()._report(report.model_copy(update={"figures": report.figures | {"dropped": 0.0}}))


class FailsARollout(RolloutActor):
    """Fails the rollouts of sample 3, so that they are dropped."""

    async def _play(self, request: RunRollout) -> RolloutFinished:
        if request.sample == 3:
            raise ValueError("planted")
        return await super()._play(request)


class HastyLeases(Leases):
    """Gives a lease back after its first turn, and goes on with it."""

    def say_progress(self, lease, tokens) -> None:
        self._port.tell(self._balancer, ReleaseLease(rollout=lease.rollout))


class UsesWhatItGaveBack(RolloutActor):
    async def start(self) -> None:
        await super().start()
        self.leases = HastyLeases(self.port, self._balancer)


@pytest.mark.parametrize(
    ("role", "actor", "complaint"),
    [
        ("rollouts", KeepsLeases, "a lease leaked"),
        ("balancer", LosesWakeUps, "work is not conserved"),
        ("learner", LearnsTwice, "trained twice"),
        ("director", GoesBack, "opens the gate .* a version goes back"),
        ("generators", KeepsOldWeights, "but the gate opened with"),
        ("generators", OverfullGenerator, "over budget"),
        ("balancer", WaitsForAll, "work is not conserved"),
        ("balancer", PromisesTooMuch, "over its budget"),
        ("director", DoublesRollouts, "a doubled rollout"),
        ("rollouts", UsesWhatItGaveBack, "which it has given back"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, role: str, actor: type[Actor], complaint: str
) -> None:
    with pytest.raises(Violation, match=complaint):
        rehearse_with(monkeypatch, {role: actor})


def test_a_rollout_that_is_dropped_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rehearse_with(monkeypatch, {"rollouts": FailsARollout})
    assert found.figures["dropped"] == 2 * 4


def test_a_rollout_that_nobody_owns_up_to_having_dropped_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Violation, match="some are lost"):
        rehearse_with(monkeypatch, {"rollouts": FailsARollout, "director": ForgetsARollout})
