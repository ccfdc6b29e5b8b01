"""A cast with two learners: who starts before whom, and that they go on together from what they have written together.

Each learner is in a process of its own, with the arguments and the environment that the cast gives it; all other parts
are only noted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.learner import LearnerActor
from actors.messages import BeginStage, Learn, PublishWeights, WriteCheckpoint
from actors.storage.checkpoints import newest_checkpoint
from actors.system.actor import Actor, ActorRef, BlobRef, CannotGoOn
from actors.system.kill_point import kill_variable
from actors.system.leftovers import SESSION_VARIABLE
from actors.system.message import Message
from actors.system.stage import Part
from orchestration.cast import Cast, cast_for, enter
from orchestration.recipe import Recipe
from orchestration.recipe_loading import load_recipe
from orchestration.resume import Beginning
from policies.options import ObjectiveOptions, OptimiserOptions
from policies.run_progress import RunProgress
from policies.trajectory import WeightsVersion
from tests.actors.learning.samples import batch, model_folder
from tests.support.in_process_stage import InProcessStage

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
LEARNER = ActorRef("learner")
SECONDS = 120.0
BEGIN = BeginStage(
    optimiser=OptimiserOptions(learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=64),
    objective=ObjectiveOptions(),
    total_steps=10,
)


class ElsewhereActor(Actor):
    """Stands for an actor of another process: hands on what it is asked, one request at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def handle(self, message: Message) -> Message | None:
        blob = await self.port.blobs.get(BlobRef(message.blob)) if isinstance(message, Learn) else None
        return await asyncio.to_thread(self._exchange, message, blob)

    def _exchange(self, message: Message, blob: Any) -> Message:
        self._pipe.send((message, blob))
        assert self._pipe.poll(SECONDS), f"no answer to {message.tag}"
        return self._pipe.recv()


def host_alone(pipe: Connection, part: Part) -> None:
    """The other process: plays one part until the pipe is closed."""
    os.environ.update(part.environment)

    async def serve() -> None:
        async with InProcessStage() as stage:
            ref = await stage.host(part.name, part.actor(**part.arguments))
            pipe.send("started")
            while True:
                try:
                    message, blob = await asyncio.to_thread(pipe.recv)
                except EOFError:
                    return
                if isinstance(message, Learn):
                    message = message.model_copy(update={"blob": (await stage.blobs.put(blob)).key})
                pipe.send(await stage.port.ask(ref, message))

    asyncio.run(serve())


class LearnersOnly(InProcessStage):
    """A stage on which a cast's learners are real: the first one here, the others elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned: list[set[str]] = []
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []

    async def spawn(self, *parts: Part) -> list[ActorRef]:
        self.spawned.append({part.name for part in parts})
        for part in parts:
            if part.actor is LearnerActor:
                await self.host(part.name, part.actor(**part.arguments) if part.name == "learner" else self._far(part))
        return [ActorRef(part.name) for part in parts]

    def _far(self, part: Part) -> Actor:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        here, there = context.Pipe()
        process = context.Process(target=host_alone, args=(there, part), daemon=True)
        process.start()
        self.processes.append(process)
        self.pipes.append(here)
        there.close()
        assert here.poll(SECONDS) and here.recv() == "started"
        return ElsewhereActor(here)

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join(SECONDS)
            process.terminate()

    async def learn(self, step_id: str, seed: int) -> WeightsVersion:
        blob = await self.port.blobs.put(batch(seed))
        return (await self.port.ask(LEARNER, Learn(step_id=step_id, kind="reinforce", blob=blob.key))).version

    async def weights(self) -> dict[str, torch.Tensor]:
        return await self.blobs.get(BlobRef((await self.port.ask(LEARNER, PublishWeights(asker="test"))).blob))


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(QUICKSTART, ["learner.count=2", "learner.threads=1"])


@pytest.fixture
def director() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the process that directs a run."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def cast_of(recipe: Recipe, folder: Path, beginning: Beginning) -> Cast:
    return cast_for(recipe, model=folder / "model", folder=folder, run_id="two", beginning=beginning)


def test_all_learners_begin_with_the_same_and_the_first_knows_the_others(recipe: Recipe, tmp_path: Path) -> None:
    progress = RunProgress(version=WeightsVersion(2, 17))
    cast = cast_of(recipe, tmp_path, Beginning(checkpoint=tmp_path / "000017", progress=progress))
    (other,) = cast.other_learners
    assert cast.learner.arguments["others"] == [ActorRef(other.name)] and not other.arguments["others"]
    for part in (cast.learner, other):
        assert part.arguments["checkpoint"] == str(tmp_path / "000017")
        assert part.arguments["version"] == (2, 17)
        assert part.environment["GLOO_SOCKET_IFNAME"] == "lo"
    same = [{k: v for k, v in part.arguments.items() if k != "others"} for part in (cast.learner, other)]
    assert same[0] == same[1]
    assert [part.name for part in cast.parts()].count(other.name) == 1


@pytest.mark.slow
async def test_two_learners_go_on_from_their_checkpoint_bit_for_bit(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the cast's, for the learner of this process and for its children
    model_folder(tmp_path / "model")
    async with LearnersOnly() as stage:
        await enter(stage, cast_of(recipe, tmp_path, Beginning()))  # type: ignore[arg-type]
        assert "learner-1" in stage.spawned[0] and "learner" in stage.spawned[1]
        await stage.port.ask(LEARNER, BEGIN)
        assert await stage.learn("a", 0) == (0, 1)
        progress = RunProgress(version=WeightsVersion(0, 1))
        await stage.port.ask(LEARNER, WriteCheckpoint(folder=str(tmp_path / "resume"), keep=1, progress=progress))
        kept = await stage.weights()
        assert await stage.learn("b", 1) == (0, 2)
        expected = await stage.weights()
    found, faults = newest_checkpoint(tmp_path / "resume")
    assert found is not None and not faults
    version = WeightsVersion(1, 1)
    beginning = Beginning(checkpoint=found.path, progress=found.progress.model_copy(update={"version": version}))
    async with LearnersOnly() as stage:
        await enter(stage, cast_of(recipe, tmp_path, beginning))  # type: ignore[arg-type]
        torch.testing.assert_close(await stage.weights(), kept, rtol=0, atol=0)
        await stage.port.ask(LEARNER, BEGIN.model_copy(update={"resumed": True}))
        assert await stage.learn("b", 1) == (1, 2)
        torch.testing.assert_close(await stage.weights(), expected, rtol=0, atol=0)
    assert any(not torch.equal(expected[name], kept[name]) for name in kept), "the second step moved something"


@pytest.mark.slow
async def test_a_run_can_be_made_to_die_when_one_learner_has_made_its_part_of_a_step(
    recipe: Recipe, director: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    model_folder(tmp_path / "model")
    environment = kill_variable("ranks:2") | {SESSION_VARIABLE: str(tmp_path / f"gr-{director.pid}-0-test")}
    async with LearnersOnly() as stage:
        await enter(stage, cast_of(recipe, tmp_path, Beginning()), environment)  # type: ignore[arg-type]
        await stage.port.ask(LEARNER, BEGIN)
        assert await stage.learn("a", 0) == (0, 1)
        assert director.poll() is None
        with pytest.raises(CannotGoOn, match="lost a shard of the model"):
            await stage.learn("b", 1)
        (other,) = stage.processes
        other.join(SECONDS)
        assert other.exitcode == director.wait(SECONDS) == -signal.SIGKILL
