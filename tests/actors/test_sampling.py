"""What is played is accounted for: finished, set aside after a few actors have failed it, or the end of the run."""

from __future__ import annotations

import pytest

from actors.messages import RolloutFinished, RunRollout
from actors.sampling import TRIES, Sampler, SandboxBroken
from actors.system.actor import Actor, ActorRef, CannotGoOn, handles
from policies.dialogue import DialogueLimits
from policies.trajectory import Problem, Trajectory
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory
from tests.policies.test_void_rollouts import rollout
from tests.support.in_process_stage import InProcessStage

PROBLEM = Problem(id="p", question="1 + 1?", gold="2")


class Plays(Actor):
    """Answers each rollout with what it is given; poisoned ones kill whatever plays them, as far as can be seen."""

    def __init__(self, played: Trajectory, *, unstored: str = "", poisoned: str = "") -> None:
        self._played, self._unstored, self._poisoned = played, unstored, poisoned
        self.asked: list[str] = []

    @handles(RunRollout)
    async def on_run(self, request: RunRollout) -> RolloutFinished:
        self.asked.append(request.id)
        if self._poisoned in (request.id, "all"):
            raise RuntimeError("poison")
        if self._unstored:
            raise CannotGoOn(self._unstored)
        played = self._played.model_copy(update={"id": request.id, "group": request.group, "sample": request.sample})
        return RolloutFinished(trajectory=played)


async def sample(player: Plays, samples: int):
    async with InProcessStage() as stage:
        await stage.host("rollout-0", player)
        sampler = Sampler(stage.port, [ActorRef("rollout-0")])
        limits = DialogueLimits(max_tokens=64)
        return await sampler.sample([PROBLEM], samples, stage="rl", step=0, limits=limits, temperature=1.0)


async def test_a_rollout_that_every_actor_fails_is_set_aside_and_the_others_are_kept() -> None:
    player = Plays(trajectory(PROMPT, MODEL), poisoned="rl/0/0/1")
    sampled = await sample(player, 3)
    assert [each.id for each in sampled.groups[0]] == ["rl/0/0/0", "rl/0/0/2"]
    assert player.asked.count("rl/0/0/1") == TRIES
    (dropped,) = sampled.dropped
    assert dropped.startswith("rl/0/0/1: HandlerFailed") and "poison" in dropped


async def test_rollouts_that_fail_on_all_actors_end_the_run_when_they_are_most() -> None:
    with pytest.raises(CannotGoOn, match=r"^5 of 5 rollouts failed on every actor .*: RuntimeError: poison\. See"):
        await sample(Plays(trajectory(PROMPT, MODEL), poisoned="all"), 5)


async def test_an_archive_that_takes_nothing_ends_the_run_with_its_reason() -> None:
    player = Plays(trajectory(PROMPT, MODEL), unstored="No space left on device")
    with pytest.raises(CannotGoOn, match=r"^No space left on device$"):
        await sample(player, 2)
    assert len(player.asked) == len(set(player.asked)), "no rollout was tried again"


async def test_a_sandbox_that_fails_everything_ends_the_run_with_its_reason() -> None:
    with pytest.raises(SandboxBroken, match=r"4 of 4 rollouts.*The zygote died"):
        await sample(Plays(rollout(0, void=True)), 4)
