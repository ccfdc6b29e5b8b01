"""Packed rows give what the library gives for each sequence alone: log-probabilities, entropies and gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from actors.learning.attention import ATTENTION, plan_blocks
from actors.learning.model import ModelSpec, build_model, load_model, named_weights, score_row
from policies import tokens
from policies.batch import TrainingSequence
from policies.packing import pack
from tests.actors.learning.samples import VOCABULARY, batch, model_folder, small_model, weights_of


def alone(model, sequence: TrainingSequence, temperature: float = 1.0):
    """Log-probabilities and entropies of the learned tokens, by the library's own attention and head."""
    ids = torch.tensor(tokens.unpack_ids(sequence.ids))[None]
    shares = (model(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
    at = torch.from_numpy(np.flatnonzero(np.frombuffer(sequence.learned, np.uint8)))
    return shares[at - 1, ids[0, at]], -(shares.exp() * shares).sum(-1)[at - 1]


def compare(model, sequences, row_tokens: int, temperature: float = 1.0, chunk_logits: int | None = None) -> None:
    """Packed against unpacked: values, and the gradient of a random weighting of all log-probabilities."""
    weighting = [
        torch.randn(s.learned_tokens, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(sequences)
    ]
    packed_logprobs: dict[int, torch.Tensor] = {}
    model.zero_grad()
    for row in pack(sequences, row_tokens):
        scores = score_row(model, row, temperature, chunk_logits)
        for index in row.sequences:
            mine = torch.from_numpy(row.owners == index)
            packed_logprobs[int(index)] = scores.logprobs[mine]
            _, entropies = alone(model, sequences[index], temperature)
            torch.testing.assert_close(scores.entropies[mine], entropies.detach(), rtol=1e-4, atol=2e-5)
        torch.stack([(packed_logprobs[int(i)] * weighting[i]).sum() for i in row.sequences]).sum().backward()
    packed_gradient = {name: p.grad.clone() for name, p in model.named_parameters()}

    model.zero_grad()
    model.set_attn_implementation("eager")
    for index, sequence in enumerate(sequences):
        expected, _ = alone(model, sequence, temperature)
        torch.testing.assert_close(packed_logprobs[index], expected, rtol=1e-5, atol=2e-5)
        (expected * weighting[index]).sum().backward()
    model.set_attn_implementation(ATTENTION)
    for name, parameter in model.named_parameters():
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(packed_gradient[name], parameter.grad, rtol=1e-4, atol=2e-5 * scale + 1e-9, msg=name)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    row_tokens=st.sampled_from([24, 60, 500]),
    temperature=st.sampled_from([1.0, 0.6, 1.3]),
    chunk_logits=st.sampled_from([None, 3 * VOCABULARY, 1]),
)
def test_packed_rows_score_and_differentiate_as_unpacked_sequences(seed, row_tokens, temperature, chunk_logits) -> None:
    compare(small_model(), batch(seed), row_tokens, temperature, chunk_logits)


@pytest.mark.parametrize("changes", [{"kv_heads": 4}, {"kv_heads": 1}, {"tie_embeddings": False}])
def test_other_shapes_of_llama_agree_too(changes) -> None:
    compare(small_model(**changes), batch(3), 60)


def test_another_architecture_with_learned_positions_agrees_too(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    compare(load_model(tmp_path, "float32"), batch(4), 60)


def test_no_token_sees_another_sequence_or_its_own_future() -> None:
    model, sequences = small_model(), list(batch(5))
    changed = next(i for i, s in enumerate(sequences) if s.length > 6)
    ids = tokens.unpack_ids(sequences[changed].ids)
    ids[-1] = (ids[-1] + 1) % VOCABULARY
    after = [*sequences]
    after[changed] = sequences[changed].model_copy(update={"ids": tokens.pack_ids(ids)})
    (before_row,), (after_row,) = pack(sequences, 500), pack(after, 500)
    with torch.no_grad():
        before, now = score_row(model, before_row).logprobs, score_row(model, after_row).logprobs
    stop = before_row.boundaries[list(before_row.sequences).index(changed) + 1]
    elsewhere = torch.from_numpy(before_row.predictors != stop - 2)
    torch.testing.assert_close(before[elsewhere], now[elsewhere], rtol=0, atol=0)


def test_blocks_cover_a_row_and_pad_little() -> None:
    lengths = np.array([100, 99, 81, 79, 40, 40, 40, 3, 1])
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    blocks = plan_blocks(boundaries)
    assert [(b.start, b.stop) for b in blocks] == [(0, 280), (280, 359), (359, 479), (479, 482), (482, 483)]
    assert [b.padded is None for b in blocks] == [False, True, True, True, True]
    first = blocks[0]
    assert first.padded is not None and first.real is not None
    assert first.padded[first.real].tolist() == list(range(280))


def test_building_is_seeded_and_leaves_global_randomness_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, other = small_model(seed=1), small_model(seed=1)
    assert torch.equal(torch.rand(3), expected)
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=0)


def test_another_seed_gives_other_weights() -> None:
    one, other = weights_of(small_model(seed=1)), weights_of(small_model(seed=2))
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_named_weights_are_those_of_a_checkpoint(tmp_path: Path, tied: bool) -> None:
    from safetensors.torch import load_file

    folder = model_folder(tmp_path / "m", tie_embeddings=tied)
    weights = named_weights(load_model(folder, "float32"))
    stored = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in weights) == (not tied)
    torch.testing.assert_close(dict(sorted(weights.items())), dict(sorted(stored.items())), rtol=0, atol=0)


def test_bfloat16_loads_and_scores_close_to_float32(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (row,) = pack(batch(6), 500)
    with torch.no_grad():
        exact = score_row(load_model(folder, "float32"), row).logprobs
        rounded = score_row(load_model(folder, "bfloat16"), row).logprobs
    assert rounded.dtype == torch.float32
    assert 0 < float((exact - rounded).abs().mean()) < 0.1


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(tmp_path, "float32")


def test_a_sequence_longer_than_a_sliding_window_is_refused_and_a_shorter_one_is_right(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=64, sliding_window=16,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path, "float32")
    compare(model, batch(7, longest=16), 60)
    with pytest.raises(ValueError, match="sliding window of 16"):
        score_row(model, pack(batch(7, longest=60), 500)[0])


def test_a_head_that_does_more_than_project_is_refused(tmp_path: Path) -> None:
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=48, max_position_embeddings=64, logit_scale=4.0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    CohereForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="log-probabilities of packed rows are off"):
        load_model(tmp_path, "float32")


def test_packed_attention_refuses_what_it_would_get_wrong() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        model(input_ids=torch.zeros(2, 4, dtype=torch.long))


def test_a_model_that_came_from_here_generates_when_loaded_afresh(tmp_path: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_folder(tmp_path / "m"))
    made = loaded.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert made.shape == (1, 7)


@pytest.mark.parametrize(("changes", "complaint"), [({"heads": 5}, "heads 5"), ({"kv_heads": 3}, "kv_heads 3")])
def test_heads_that_do_not_divide_are_refused(changes, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ModelSpec(**changes)


def test_special_token_ids_reach_the_config() -> None:
    model = build_model(ModelSpec(), vocabulary=50, seed=0, bos_id=1, eos_id=2, pad_id=3)
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (1, 2, 3)
    assert model.generation_config is not None and model.generation_config.eos_token_id == 2
