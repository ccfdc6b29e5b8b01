"""The comparison gives both sides the same work, and reads their figures as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.tokenizer import load_chat_format
from benchmarks.vs_trl import StepFigures, as_table, side_figures, steps_of_run
from benchmarks.vs_trl_job import (
    NEVER_SAMPLED,
    PROMPT,
    Job,
    as_text,
    fixed_length_model,
    problem_options,
    prompts_in_order,
    recipe_for,
)
from orchestration.recipe_loading import validate_recipe
from orchestration.tiny_model import write_tokenizer
from policies.curriculum import ProblemStream
from policies.stages import ReinforcementOptions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the quickstart's tokenizer, which gets the token that ends nothing."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_tokenizer(folder, 256)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    known = tokenizer["added_tokens"]
    vocabulary = tokenizer["model"]["vocab"]
    spare = known[0] | {"content": NEVER_SAMPLED, "id": len(vocabulary)}
    vocabulary[NEVER_SAMPLED] = spare["id"]
    known.append(spare)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps({"eos_token_id": 0}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def job(model: Path, tmp_path: Path) -> Job:
    return Job(
        model=str(model),
        folder=str(tmp_path / "run"),
        prompts=[],
        prompts_per_step=2,
        group=4,
        completion_tokens=16,
        steps=3,
        dtype="bfloat16",
        threads=2,
        completions_per_pass=4,
    )


def test_turns_end_with_a_token_that_the_model_never_samples(model: Path, tmp_path: Path) -> None:
    before = load_chat_format(str(model), PROMPT)
    after = load_chat_format(str(fixed_length_model(model, tmp_path / "fixed")), PROMPT)
    (ending,) = after.stop_ids
    assert after.decode([ending]) == NEVER_SAMPLED and after.stop_ids != before.stop_ids
    assert json.loads((tmp_path / "fixed" / "config.json").read_text())["eos_token_id"] == ending
    assert (tmp_path / "fixed" / "model.safetensors").resolve() == model / "model.safetensors"
    assert load_chat_format(str(model), PROMPT).stop_ids == before.stop_ids, "the original is as it was"


def test_a_model_without_that_token_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 256)
    with pytest.raises(ValueError, match="made for SmolLM2"):
        fixed_length_model(tmp_path, tmp_path / "fixed")


def test_both_sides_get_the_prompts_of_our_stream_in_its_order(model: Path, tmp_path: Path) -> None:
    fixed = fixed_length_model(model, tmp_path / "fixed")
    options = problem_options(None, 6)
    stage = validate_recipe(recipe_for(job(fixed, tmp_path), options, 40), "a test").stages["rl"]
    assert isinstance(stage, ReinforcementOptions)
    stream = ProblemStream(stage.problems, run_seed=0, held_out=False)
    chat = load_chat_format(str(fixed), PROMPT)
    prompts = prompts_in_order(options, 6, fixed, seed=0)
    assert prompts == [chat.prompt(stream.problem(index).question, ()) for index in range(6)]
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert [chat.prompt(stream.problem(0).question, ())] == prompts[:1]
    for text, index in zip(as_text(prompts, fixed), range(6), strict=True):
        assert stream.problem(index).question in text


def test_our_recipe_has_the_jobs_figures(model: Path, tmp_path: Path) -> None:
    given = job(model, tmp_path)
    recipe = validate_recipe(recipe_for(given, problem_options(None, 6), 40), "a test")
    stage = recipe.stages["rl"]
    assert isinstance(stage, ReinforcementOptions)
    assert (stage.prompts, stage.sampled, stage.steps, stage.limits.max_turn_tokens) == (2, 4, 3, 16)
    assert stage.limits.max_tokens == recipe.generators.engine.max_sequence_tokens == 40 + 16
    assert recipe.model.dtype == recipe.generators.engine.dtype == "bfloat16"
    assert recipe.generators.threads == recipe.learner.threads == 2
    assert (recipe.generators.engine.kv_tokens or 0) >= 2 * 4 * (40 + 16), "nobody waits for a lease"


def test_a_step_lasts_from_its_predecessors_end_and_the_first_is_not_counted(tmp_path: Path) -> None:
    steps = [(1, 30.0, 9.0, 12.0, 64), (2, 50.0, 5.0, 11.0, 64), (3, 65.0, 4.0, 10.0, 48)]
    records = [{"kind": "event", "stage": "started", "step": 0, "seconds": 5.0}] + [
        {"kind": "step", "stage": "rl", "step": step, "seconds": seconds, "time_rollout_s": rollout,
         "learner_learn_seconds": learn, "learner_learned_tokens": tokens}
        for step, seconds, rollout, learn, tokens in steps
    ]  # fmt: skip
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    counted = steps_of_run(metrics)
    assert counted == [StepFigures(20.0, 5.0, 11.0, 64), StepFigures(15.0, 4.0, 10.0, 48)]
    figures = side_figures(counted)
    assert figures.tokens_per_s == pytest.approx(112 / 35)
    assert figures.rest_seconds == pytest.approx((4.0 + 1.0) / 2)
    assert figures.steps == 2


def test_the_table_has_both_sides_and_the_roofline() -> None:
    fast, slow = (side_figures([StepFigures(seconds, 1.0, 2.0, 64.0)]) for seconds in (4.0, 8.0))
    least = {"generation_seconds": 0.5, "learning_seconds": 1.5, "tokens_per_s": 32.0, "flops_per_s": 4e11,
             "bytes_per_s": 2e10}  # fmt: skip
    table = as_table(
        {"tokens_per_s_ratio": 2.0, "greenroom": fast._asdict(), "trl": slow._asdict(), "roofline": least,
         "job": {"dtype": "bfloat16"}}
    )  # fmt: skip
    assert "| greenroom | 16 | 4.00 s | 1.00 s | 2.00 s | 1.00 s |" in table
    assert "| trl | 8 | 8.00 s | 1.00 s | 2.00 s | 5.00 s |" in table
    assert "| roofline | 32 | 2.00 s | 0.50 s | 1.50 s | 0 |" in table
