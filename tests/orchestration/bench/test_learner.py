"""Both sides of the learner benchmark do the same work; how fast they are is not a test's business."""

from __future__ import annotations

import json

import pytest
import torch

from actors.learning.model import ModelSpec, build_model
from orchestration.bench.learner import LONGEST, bench_learner, known_models, shape_of
from orchestration.bench.learner_sides import LENGTHS, packed_step, passes, plain_step, sequences_for, steps_of
from orchestration.recipe import RecipeError

TINY = ModelSpec(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=48, max_positions=64)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_both_sides_have_the_same_losses_and_end_at_the_same_weights() -> None:
    sequences = sequences_for(50, longest=64)
    models = [build_model(TINY, vocabulary=50, seed=3) for _ in range(2)]
    sides = [packed_step(models[0], sequences, threads=1), plain_step(models[1], threads=1)]
    for _ in range(2):
        ours, plain = (step(sequences) for step in sides)
        assert ours == pytest.approx(plain, rel=1e-4, abs=1e-6)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2 * 2e-6)  # where a gradient is all noise, so is its sign
        assert float((one - other).detach().abs().mean()) < 1e-7


def test_lengths_are_those_of_the_file_scaled_to_the_longest() -> None:
    stored = json.loads(LENGTHS.read_text())
    longest = max(length for row in stored["rows"] for length in row)
    sequences = sequences_for(50, longest=LONGEST)
    assert longest == stored["longest"] and max(s.length for s in sequences) == LONGEST
    assert [len(batch) for batch in passes(sequences)] == [len(row) for row in stored["rows"]] == [8] * 8
    assert all(0 < s.learned_tokens < s.length for s in sequences)


def test_steps_share_the_file_out_with_nothing_left_over() -> None:
    sequences = sequences_for(50, longest=LONGEST)
    for parts in (1, 4):
        steps = steps_of(sequences, parts)
        assert [len(step) for step in steps] == [64 // parts] * parts
        assert sorted(s.ids for step in steps for s in step) == sorted(s.ids for s in sequences)


def test_the_large_model_has_the_shape_of_smollm2() -> None:
    shape = shape_of("llama_135m")
    hidden, width = shape.spec.hidden_size, shape.spec.hidden_size // shape.spec.heads
    attention = hidden * width * 2 * (shape.spec.heads + shape.spec.kv_heads)
    layer = attention + 3 * hidden * shape.spec.intermediate_size + 2 * hidden
    assert shape.spec.layers * layer + shape.vocabulary * hidden + hidden == 134_515_008


def test_a_model_that_is_not_measured_is_refused_by_name() -> None:
    assert known_models(None) == ["quickstart", "llama_135m"]
    with pytest.raises(RecipeError, match="choose from quickstart, llama_135m"):
        known_models(["gpt"])


@pytest.mark.slow
def test_the_figures_of_the_learner_benchmark_agree_with_each_other() -> None:
    figures = bench_learner(1, models=["quickstart"], rounds=1)
    found = json.loads(figures.model_dump_json())["models"]["quickstart"]
    ours, plain = found["packed"], found["plain"]
    assert found["tokens_per_s_ratio"] == pytest.approx(ours["tokens_per_s"] / plain["tokens_per_s"])
    assert found["peak_memory_ratio"] == pytest.approx(ours["peak_bytes"] / plain["peak_bytes"])
    assert ours["tokens_per_s"] * ours["seconds"] == pytest.approx(found["tokens"])
    assert found["tokens"] < found["padded_tokens"] and found["passes_per_step"] == 8
    assert ours["resting_bytes"] > 10 << 20 and plain["peak_bytes"] > 0
