"""The learner as an actor: repeats train once, versions follow steps, published weights are copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.learner import LearnerActor
from actors.learning.trainer import Kind, Trainer
from actors.messages import BeginStage, Learn, Learned, PublishWeights, SaveCheckpoint, WriteCheckpoint
from actors.storage.checkpoints import newest_checkpoint
from actors.system.actor import ActorRef, BlobRef, CannotGoOn, DeadlineExceeded, HandlerFailed
from policies.options import ObjectiveOptions, OptimiserOptions
from policies.run_progress import RunProgress
from policies.trajectory import WeightsVersion
from tests.actors.learning.conftest import one_thread  # noqa: F401
from tests.actors.learning.samples import batch, model_folder
from tests.support.in_process_stage import InProcessStage

LEARNER = ActorRef("learner")
BEGIN = BeginStage(
    optimiser=OptimiserOptions(learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=64),
    objective=ObjectiveOptions(),
    total_steps=10,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
async def stage(folder: Path) -> AsyncIterator[InProcessStage]:
    async with InProcessStage() as made:
        await made.host("learner", LearnerActor(model=str(folder)))
        await made.port.ask(LEARNER, BEGIN)
        yield made


async def learn(stage, step_id: str, sequences, kind: Kind = "reinforce") -> Learned:
    blob = await stage.port.blobs.put(tuple(sequences))
    return await stage.port.ask(LEARNER, Learn(step_id=step_id, kind=kind, blob=blob.key), deadline_s=60)


async def published(stage, asker: str = "test") -> tuple[WeightsVersion, dict[str, torch.Tensor]]:
    answer = await stage.port.ask(LEARNER, PublishWeights(asker=asker), deadline_s=60)
    return answer.version, await stage.port.blobs.get(BlobRef(answer.blob))


async def test_versions_count_optimiser_steps(stage) -> None:
    assert (await published(stage))[0] == (0, 0)
    assert (await learn(stage, "a", batch(0))).version == (0, 1)
    assert (await learn(stage, "b", batch(1, sampled=False), "fine_tune")).version == (0, 2)
    assert (await published(stage))[0] == (0, 2)


async def test_each_step_is_measured(stage) -> None:
    reinforced = (await learn(stage, "a", batch(0))).metrics
    assert {
        "loss", "gradient_norm", "learning_rate", "tokens", "learned_tokens", "learn_seconds", "skipped",
        "entropy", "tokens_per_s", "peak_memory_bytes", "clip_high_share", "clip_low_share", "ratio_min",
        "ratio_tail_share", "engine_mismatch_tail_share",
        "engine_mismatch_mean_abs", "engine_mismatch_max", "mismatch_kl", "clip_share", "ratio_mean", "ratio_max",
    } <= set(reinforced)  # fmt: skip
    assert reinforced["tokens"] == sum(s.length for s in batch(0))
    assert reinforced["learned_tokens"] == sum(s.learned_tokens for s in batch(0))
    assert reinforced["learn_seconds"] > 0 and reinforced["skipped"] == 0
    tuned = (await learn(stage, "b", batch(0, sampled=False), "fine_tune")).metrics
    assert "engine_mismatch_max" not in tuned and tuned["loss"] > 0


async def test_a_repeated_step_trains_once_and_gets_the_same_answer(stage) -> None:
    first = await learn(stage, "a", batch(0))
    _, before = await published(stage)
    assert await learn(stage, "a", batch(0)) == first
    version, after = await published(stage)
    assert version == (0, 1)
    torch.testing.assert_close(after, before, rtol=0, atol=0)


async def test_a_repeat_while_the_first_is_at_work_trains_once(stage) -> None:
    answers = await asyncio.gather(*[learn(stage, "a", batch(0)) for _ in range(5)])
    assert all(answer == answers[0] for answer in answers)
    assert (await published(stage))[0] == (0, 1)


async def test_an_asker_that_gives_up_does_not_undo_the_step(stage) -> None:
    with pytest.raises(DeadlineExceeded):
        blob = await stage.port.blobs.put(batch(0))
        await stage.port.ask(LEARNER, Learn(step_id="a", kind="reinforce", blob=blob.key), deadline_s=1e-3)
    assert (await learn(stage, "a", batch(0))).version == (0, 1)
    assert (await published(stage))[0] == (0, 1)


async def test_a_step_with_nothing_to_learn_keeps_the_version(stage) -> None:
    silent = [s.model_copy(update={"advantage": 0.0}) for s in batch(0)]
    for step_id, sequences in (("a", []), ("b", silent)):
        answer = await learn(stage, step_id, sequences)
        assert answer.version == (0, 0) and answer.metrics["skipped"] == 1
    assert (await learn(stage, "c", batch(0))).version == (0, 1)


async def test_a_step_that_failed_may_be_tried_again(stage) -> None:
    broken = [s.model_copy(update={"advantage": float("nan")}) for s in batch(0)]
    with pytest.raises(CannotGoOn, match="weights were left as they are"):
        await learn(stage, "a", broken)
    with pytest.raises(HandlerFailed, match="KeyError"):
        await stage.port.ask(LEARNER, Learn(step_id="a", kind="reinforce", blob="gone"))
    assert (await learn(stage, "a", batch(0))).version == (0, 1)


async def test_published_weights_do_not_change_with_the_next_step(stage) -> None:
    _, weights = await published(stage)
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    await learn(stage, "a", batch(0))
    torch.testing.assert_close(weights, copies, rtol=0, atol=0)
    _, moved = await published(stage)
    assert all(not torch.equal(moved[name], copies[name]) for name in copies)
    assert all(t.is_contiguous() and not t.requires_grad and t.device.type == "cpu" for t in moved.values())


async def test_a_checkpoint_holds_the_published_weights(stage, tmp_path: Path) -> None:
    await learn(stage, "a", batch(0))
    for _ in range(2):  # a repeat replaces it by the same
        await stage.port.ask(LEARNER, SaveCheckpoint(path=str(tmp_path / "last")), deadline_s=60)
    _, weights = await published(stage)
    loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "last").named_parameters())
    assert loaded.keys() == weights.keys()
    torch.testing.assert_close({n: p.detach() for n, p in loaded.items()}, weights, rtol=0, atol=0)
    assert (tmp_path / "last" / "tokenizer.json").is_file()


async def test_a_learner_that_begins_with_a_checkpoint_goes_on_bit_for_bit(stage, folder: Path, tmp_path: Path) -> None:
    for step_id, seed in (("a", 0), ("b", 1)):
        await learn(stage, step_id, batch(seed))
    progress = RunProgress(version=WeightsVersion(0, 2))
    await stage.port.ask(LEARNER, WriteCheckpoint(folder=str(tmp_path), keep=1, progress=progress), deadline_s=60)
    found, faults = newest_checkpoint(tmp_path)
    assert found is not None and found.progress == progress and faults == []
    await learn(stage, "c", batch(2))
    _, expected = await published(stage)
    async with InProcessStage() as other:
        version = WeightsVersion(1, 2)
        resumed = LearnerActor(model=str(folder), checkpoint=str(found.path), version=version)
        await other.host("learner", resumed)
        await other.port.ask(LEARNER, BEGIN.model_copy(update={"resumed": True}))
        assert (await published(other))[0] == version
        assert (await learn(other, "c", batch(2))).version == (1, 3)
        _, weights = await published(other)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


async def test_a_checkpoint_of_another_moment_is_not_written(stage, tmp_path: Path) -> None:
    await learn(stage, "a", batch(0))
    behind = WriteCheckpoint(folder=str(tmp_path), keep=1, progress=RunProgress(version=WeightsVersion(0, 0)))
    with pytest.raises(HandlerFailed, match="the learner at"):
        await stage.port.ask(LEARNER, behind, deadline_s=60)
    assert newest_checkpoint(tmp_path) == (None, [])


async def test_learning_before_a_stage_has_begun_is_refused(folder: Path) -> None:
    async with InProcessStage() as stage:
        await stage.host("learner", LearnerActor(model=str(folder)))
        with pytest.raises(HandlerFailed, match="send BeginStage before Learn"):
            await learn(stage, "a", batch(0))


@pytest.mark.slow
async def test_on_ray_the_learner_does_what_the_trainer_does(folder: Path, tmp_path: Path) -> None:
    from actors.learning.model import load_model, named_weights
    from actors.system.ray_stage import RayStage
    from actors.system.stage import Part

    trainer = Trainer(load_model(folder, "float32"))
    trainer.begin_stage(BEGIN.optimiser, BEGIN.objective, BEGIN.total_steps, BEGIN.temperature)
    expected = [trainer.step("reinforce", batch(0)), trainer.step("fine_tune", batch(1, sampled=False))]
    part = Part(name="learner", actor=LearnerActor, arguments={"model": str(folder), "threads": 1})
    async with RayStage(seed=0) as stage:
        await stage.spawn(part)
        await stage.port.ask(LEARNER, BEGIN, deadline_s=60)
        answers = [
            await learn(stage, "a", batch(0)),
            await learn(stage, "b", batch(1, sampled=False), "fine_tune"),
            await learn(stage, "b", batch(1, sampled=False), "fine_tune"),
        ]
        version, weights = await published(stage)
        await stage.port.ask(LEARNER, SaveCheckpoint(path=str(tmp_path / "last")), deadline_s=60)
    assert version == (0, 2) and answers[2] == answers[1]
    for answer, figures in zip(answers, expected, strict=False):
        assert {name: answer.metrics[name] for name in figures} == pytest.approx(figures, rel=1e-5)
    torch.testing.assert_close(weights, named_weights(trainer.model), rtol=1e-5, atol=1e-6)
    assert (tmp_path / "last" / "model.safetensors").is_file()


@pytest.mark.slow
async def test_two_learners_on_ray_are_as_one_until_one_of_them_dies(folder: Path, tmp_path: Path) -> None:
    from actors.learning.model import load_model, named_weights
    from actors.system.ray_stage import RayStage
    from actors.system.stage import Part

    trainer = Trainer(load_model(folder, "float32"))
    trainer.begin_stage(BEGIN.optimiser, BEGIN.objective, BEGIN.total_steps, BEGIN.temperature)
    expected = trainer.step("reinforce", batch(0))
    other = ActorRef("learner-1")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"}
    arguments = {"model": str(folder), "threads": 1}
    async with RayStage(seed=0) as stage:
        await stage.spawn(Part(name=other.name, actor=LearnerActor, arguments=arguments, environment=loopback))
        first = Part(
            name="learner", actor=LearnerActor, arguments=arguments | {"others": (other,)}, environment=loopback
        )
        await stage.spawn(first)
        await stage.port.ask(LEARNER, BEGIN, deadline_s=60)
        broken = [s.model_copy(update={"advantage": float("nan")}) for s in batch(0)]
        with pytest.raises(CannotGoOn, match="weights were left as they are"):
            await learn(stage, "a", broken)
        answers = await asyncio.gather(*[learn(stage, "a", batch(0)) for _ in range(2)])
        version, weights = await published(stage)
        await stage.port.ask(LEARNER, SaveCheckpoint(path=str(tmp_path / "last")), deadline_s=60)
        await stage.kill(other)
        for _ in range(2):
            with pytest.raises(CannotGoOn, match=r"2 learners has lost a shard of the model.*\(learner-1: "):
                await learn(stage, "b", batch(1))
    assert answers[0] == answers[1] and version == answers[0].version == (0, 1)
    figures = {name: answers[0].metrics[name] for name in expected if name != "micro_batches"}
    assert figures == pytest.approx({name: expected[name] for name in figures}, rel=1e-4)
    assert weights.keys() == named_weights(trainer.model).keys()
    for name, weight in named_weights(trainer.model).items():
        assert float((weights[name] - weight).abs().mean()) < 1e-5, name
    loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "last").named_parameters())
    torch.testing.assert_close({n: p.detach() for n, p in loaded.items()}, weights, rtol=0, atol=0)


async def test_weights_that_an_asker_never_dropped_go_when_it_asks_again(stage) -> None:
    """As a generator does that died while it took them."""
    for_director = await stage.port.ask(LEARNER, PublishWeights(asker="director"))
    for _ in range(5):
        latest = await stage.port.ask(LEARNER, PublishWeights(asker="generator-0"))
        assert len(stage.blobs.values) == 2, "one of each asker"
    for kept in (for_director, latest):
        assert await stage.port.blobs.get(BlobRef(kept.blob))
