"""The roofline counts what a step computes at least: compared with counts by hand and with torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from actors.learning.model import ModelSpec, build_model
from benchmarks.roofline import ADAMW_BYTES, Machine, Step, Transformer, roofline

MODEL = Transformer(layers=2, hidden=32, heads=4, kv_heads=2, head_size=8, intermediate=48, vocabulary=100)
ENDLESS = 1e30


def test_weights_are_those_of_the_model() -> None:
    spec = ModelSpec(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate_size=48)
    model = build_model(spec, vocabulary=100, seed=0)
    matrices = {name: weight.numel() for name, weight in model.named_parameters() if weight.ndim == 2}
    assert MODEL.head_weights == matrices.pop("model.embed_tokens.weight")
    assert MODEL.layer_weights == sum(matrices.values())


def test_learning_takes_three_forward_passes_as_torch_counts_them() -> None:
    spec = ModelSpec(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate_size=48)
    model = build_model(spec, vocabulary=100, seed=0)
    prompt, completion = 5, 7
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden = model.base_model(input_ids=torch.arange(prompt + completion)[None], use_cache=False).last_hidden_state
        torch.nn.functional.linear(hidden[:, prompt - 1 : -1], model.get_parameter("model.embed_tokens.weight"))
    full_square = MODEL.attention_flops(prompt + completion, prompt + completion)
    forward = counter.get_total_flops() - counted_attention(counter) + full_square / 2
    machine = Machine(flops_per_s=1.0, bytes_per_s=ENDLESS)
    step = Step(prompts=[prompt], group=1, completion_tokens=completion)
    assert roofline(MODEL, step, machine, item_bytes=2).learning == pytest.approx(3 * forward)


def counted_attention(counter: FlopCounterMode) -> int:
    """What torch has counted beside matrix products of weights: scores and sums, by whichever operation."""
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if str(operation) not in ("aten.mm", "aten.addmm"))


def test_decoding_reads_all_weights_and_the_cache_for_each_token() -> None:
    machine = Machine(flops_per_s=ENDLESS, bytes_per_s=1.0)
    step = Step(prompts=[3, 5], group=4, completion_tokens=2)
    weights = MODEL.layer_weights + MODEL.head_weights
    cache = 2 * 2 * 2 * 8 * 4 * ((3 + 5) + (4 + 6))  # keys and values, layers, heads, width, group, tokens so far
    least = roofline(MODEL, step, machine, item_bytes=2)
    assert least.generation == pytest.approx(2 * (2 * weights + cache))
    assert least.learning == pytest.approx(ADAMW_BYTES * weights)


def test_a_group_shares_its_prompts_prefill() -> None:
    machine = Machine(flops_per_s=1.0, bytes_per_s=ENDLESS)
    one, four = (roofline(MODEL, Step([9], group, 1), machine, 2).generation for group in (1, 4))
    decode = 2.0 * (MODEL.layer_weights + MODEL.head_weights) + MODEL.attention_flops(1, 9)
    assert four - one == pytest.approx(3 * decode)
