"""A run's learner, replayed: the same bits with the same recipe, and a difference with any other."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from actors.learner import LearnerActor
from actors.messages import BeginStage, Learn, SaveCheckpoint
from actors.storage.trained_steps import batch_digest
from actors.storage.writer import ArchiveWriter
from actors.system.actor import ActorRef
from orchestration.cli import app
from orchestration.metrics import JsonlMetrics
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from orchestration.replay.learner import learning_batch
from orchestration.replay.recorded_run import RecordedRun
from orchestration.run_folder import write_recipe
from policies import tokens
from policies.grouping import LearningBatch, add_groups, resampling_random
from policies.stages import ReinforcementOptions
from policies.trajectory import Problem, Span, Trajectory, Verdict, WeightsVersion
from tests.actors.learning.conftest import one_thread  # noqa: F401
from tests.actors.learning.samples import VOCABULARY, model_folder
from tests.actors.test_reinforcement import run as run_stage
from tests.support.in_process_stage import InProcessStage

STEPS, PROMPTS, SAMPLES = 3, 2, 8
OPTIMISER = {"learning_rate": 1e-2, "warmup_steps": 0, "micro_batch_tokens": 64}


def recipe() -> Recipe:
    stage = {"kind": "reinforce", "steps": STEPS, "prompts": PROMPTS, "group": SAMPLES // 2, "optimiser": OPTIMISER}
    return validate_recipe(
        {
            "name": "small",
            "seed": 5,
            "model": {"path": "a-model"},
            "learner": {"threads": 2},
            "stages": {"sft": {"kind": "fine_tune", "steps": 1}, "rl-1": stage, "rl-2": stage},
            "evaluation": {"limits": {"max_tokens": 4096}},
            "generators": {"engine": {"max_sequence_tokens": 8192}},
        },
        "test",
    )


def rollout(stage: str, step: int, group: int, sample: int) -> Trajectory:
    """A rollout of random tokens; one in three is right."""
    name = f"{stage}/{step}/{group}"
    rng = np.random.default_rng([ord(stage[-1]), step, group, sample])
    length, correct = int(rng.integers(4, 20)), bool(rng.random() < 0.4)
    return Trajectory(
        id=f"{name}/{sample}",
        group=name,
        sample=sample,
        stage=stage,
        step=step,
        problem=Problem(id=name, question="?", gold="1"),
        spans=(
            Span(kind="prompt", ids=tokens.pack_ids(rng.integers(0, VOCABULARY, 5))),
            Span(
                kind="model",
                ids=tokens.pack_ids(rng.integers(0, VOCABULARY, length)),
                logprobs=tokens.pack_floats(-rng.exponential(3.0, length)),
                version=WeightsVersion(0, step),
            ),
        ),
        turns=1,
        answer_tags=int(rng.integers(0, 3)) if not correct else 1,
        finish="answered",
        verdict=Verdict(correct=correct, reason="right" if correct else "wrong"),
        reward=float(correct),
        generator="generator-0",
    )


async def train(folder: Path) -> None:
    """A run's folder, as the learner of a run leaves it: rollouts are stored out of order, as they finish."""
    used = recipe()
    write_recipe(used, folder)
    model_folder(folder / "checkpoints" / "sft")
    writer, learner = ArchiveWriter(folder / "archive"), ActorRef("learner")
    async with InProcessStage() as stage:
        await stage.host("learner", LearnerActor(model=str(folder / "checkpoints" / "sft"), threads=2, seed=used.seed))
        with JsonlMetrics(folder / "metrics.jsonl") as metrics:
            for name in ("rl-1", "rl-2"):
                options = used.stages[name]
                assert options.kind == "reinforce"
                begin = BeginStage(optimiser=options.optimiser, objective=options.objective, total_steps=STEPS)
                await stage.port.ask(learner, begin)
                for step in range(STEPS):
                    groups = [[rollout(name, step, g, s) for s in range(SAMPLES)] for g in range(PROMPTS)]
                    stored = [each for group in groups for each in group]
                    random.Random(step).shuffle(stored)
                    for each in stored:
                        writer.append(each)
                    batch = LearningBatch()
                    add_groups(
                        batch,
                        groups,
                        {each.id: each.reward for each in stored},
                        options,
                        resampling_random(5, name, step),
                    )
                    blob = await stage.port.blobs.put(tuple(batch.sequences))
                    request = Learn(step_id=f"{name}/{step}", kind="reinforce", blob=blob.key)
                    learned = (await stage.port.ask(learner, request, 60.0)).metrics
                    figures = {f"learner_{key}": value for key, value in learned.items()}
                    metrics.write("step", name, step + 1, **figures, **batch.figures())
                await stage.port.ask(learner, SaveCheckpoint(path=str(folder / "checkpoints" / name)), 60.0)
    writer.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    asyncio.run(train(folder))
    return folder


def replay(run: Path, *options: str) -> tuple[Result, dict]:
    done = CliRunner().invoke(app, ["replay", "learner", str(run), "--json", *options])
    assert done.stdout, done.output
    return done, json.loads(done.stdout)


def test_the_same_recipe_ends_with_the_same_weights_bit_for_bit(run: Path) -> None:
    done, told = replay(run)
    assert (done.exit_code, told["exact"], told["same_recipe"]) == (0, True, True)
    assert [(step["stage"], step["step"]) for step in told["steps"]] == [
        (stage, step) for stage in ("rl-1", "rl-2") for step in (1, 2, 3)
    ]
    assert all(step["differing"] == [] and step["recorded"]["learner_loss"] for step in told["steps"])
    assert [(each["stage"], each["differing"]) for each in told["weights"]] == [("rl-1", []), ("rl-2", [])]
    assert all(each["tensors"] > 10 for each in told["weights"])


def test_a_stage_alone_starts_from_the_weights_of_the_one_before(run: Path) -> None:
    done, told = replay(run, "--stages", "rl-2")
    assert Path(told["started_from"]).name == "rl-1"
    assert (done.exit_code, told["exact"], len(told["steps"])) == (0, True, STEPS)


def test_other_weights_to_start_from_are_noticed(run: Path) -> None:
    done, told = replay(run, "--from", str(run / "checkpoints" / "rl-2"))
    assert (done.exit_code, told["exact"]) == (1, False)
    assert "learner_loss" in told["steps"][0]["differing"] and told["weights"][0]["differing"]


def test_one_altered_reward_is_noticed(run: Path, tmp_path: Path) -> None:
    recorded = RecordedRun(run)
    writer = ArchiveWriter(tmp_path / "archive")
    for row in recorded.rows:
        each = recorded.archive.read(row)
        flipped = {"reward": 1.0 - each.reward} if each.id == "rl-1/0/0/0" else {}
        writer.append(each.model_copy(update=flipped))
    writer.close()
    for name in ("recipe.toml", "metrics.jsonl", "checkpoints"):
        (tmp_path / name).symlink_to(run / name)
    done, told = replay(tmp_path, "--stages", "rl-1")
    assert (done.exit_code, told["exact"]) == (1, False)
    assert told["steps"][0]["differing"]


def test_another_objective_is_shown_beside_the_record(run: Path) -> None:
    done, told = replay(run, "--objective", "grpo", "--stages", "rl-1")
    assert (done.exit_code, told["same_recipe"], told["exact"]) == (0, False, False)
    first = told["steps"][0]
    with_signal = first["replayed"]["groups_with_signal"]
    assert first["replayed"]["learned_rollouts"] == SAMPLES * with_signal  # nothing is resampled
    assert first["recorded"]["learned_rollouts"] == SAMPLES // 2 * first["recorded"]["groups_with_signal"]
    assert first["recorded"]["advantage_mean_abs"] != first["replayed"]["advantage_mean_abs"]
    table = CliRunner().invoke(app, ["replay", "learner", str(run), "--objective", "grpo", "--stages", "rl-1"])
    assert "another recipe than the run's" in " ".join(table.stdout.split())


def test_stored_rollouts_are_learned_from_under_another_reward(run: Path) -> None:
    coins = replay(run, "--set", "stages.rl-1.rewards=random", "--stages", "rl-1")[1]["steps"][0]
    assert coins["replayed"]["learned_reward_mean"] != coins["recorded"]["learned_reward_mean"]


def test_checkpoints_of_a_replay_are_written_where_they_are_asked_for(run: Path, tmp_path: Path) -> None:
    replay(run, "--set", "stages.rl-1.optimiser.learning_rate=0.02", "--stages", "rl-1", "--out", str(tmp_path))
    assert (tmp_path / "rl-1" / "model.safetensors").exists()
    assert (tmp_path / "rl-1" / "tokenizer.json").exists()


@pytest.mark.parametrize("rewards", ["verdict", "shuffled", "random"])
async def test_rounds_of_dynamic_sampling_give_the_learner_the_same_again(rewards: str) -> None:
    stage = {"dynamic_sampling": {"rounds": 5}, "rewards": rewards}
    kinds = ["mixed", "right", "wrong", "mixed", "wrong", *["mixed"] * 40]
    (figures,), rollouts, learner = await run_stage(kinds, **stage)
    options = ReinforcementOptions.model_validate({"kind": "reinforce", "steps": 1, "prompts": 4, "group": 2} | stage)
    groups: dict[str, list[Trajectory]] = {}
    for each in sorted(rollouts.finished, key=lambda each: (int(each.group.rpartition("/")[2]), each.sample)):
        groups.setdefault(each.group, []).append(each)
    assert figures["refill_rounds"] >= 1
    again = learning_batch(list(groups.values()), options, resampling_random(0, "rl", 0))
    assert batch_digest(again.sequences) == batch_digest(learner.batches[0])
    assert again.figures() == {name: figures[name] for name in again.figures()}
    other = learning_batch(list(groups.values()), options, resampling_random(1, "rl", 0))
    assert batch_digest(other.sequences) != batch_digest(learner.batches[0]), "the draws matter"


def test_a_stage_that_was_not_stored_is_named(run: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "learner", str(run), "--stages", "rl-9"])
    assert done.exit_code != 0 and "'rl-9' can't be replayed; choose of rl-1, rl-2" in str(done.exception)
