"""Sizing against numbers worked out by hand."""

from __future__ import annotations

import pytest

from policies.hardware import GPUS, Demand, HardwareOptions, ModelSize, size

QWEN3_14B = ModelSize(parameters=14_768_307_200, layers=40, hidden=5120, kv_heads=8, head_size=128)
EIGHT = HardwareOptions(gpu="H200-141GB", gpus=8)
DEMAND = Demand(
    generators=8,
    gpus_each=1,
    engine_bytes=2,
    kv_tokens=300_000,
    max_running=256,
    longest=8192,
    learner_gpus=8,
    learner_dtype="bfloat16",
    micro_batch_tokens=16_384,
    checkpointing=True,
)


def test_memory_is_what_a_data_sheet_and_a_model_s_shape_give() -> None:
    found = size(QWEN3_14B, DEMAND, EIGHT)
    assert found.kv_bytes_per_token == 160 * 1024  # 2 x 40 layers x 8 heads x 128 x 2 bytes
    assert found.engine_weights == pytest.approx(29.5366e9, rel=1e-4)
    assert found.learner_state == pytest.approx(14.7683e9 * 20 / 8, rel=1e-4)
    # 40 layers keep what enters them (2 bytes a value), and one layer its inside (34 bytes).
    assert found.activations == 16_384 * 5120 * (2 * 40 + 34)
    kept = size(QWEN3_14B, DEMAND._replace(checkpointing=False), EIGHT)
    assert kept.activations == 16_384 * 5120 * 34 * 40
    room = 0.9 * 141e9 - found.engine_weights - found.learner_state - found.activations
    assert found.shared and found.kv_capacity == int(room / 163_840) and found.faults == ()


def test_a_decoding_step_reads_weights_and_cache() -> None:
    found = size(QWEN3_14B, DEMAND, EIGHT)
    assert found.batch == 300_000 // 4096 == 73
    assert found.bound_by == "memory bandwidth"
    assert found.step_seconds == pytest.approx((29.5366e9 + 73 * 4096 * 163_840) / 4.8e12, rel=1e-4)
    assert found.tokens_per_second == pytest.approx(8 * 73 / found.step_seconds)


def test_short_sequences_in_large_batches_are_bound_by_arithmetic() -> None:
    found = size(QWEN3_14B, DEMAND._replace(longest=64, max_running=4096, kv_tokens=None), EIGHT)
    assert found.bound_by == "arithmetic"
    assert found.step_seconds == pytest.approx(2 * 14.7683e9 * found.batch / GPUS["H200-141GB"].flops, rel=1e-4)


def test_what_does_not_fit_is_said_with_numbers() -> None:
    small = HardwareOptions(gpu="A100-80GB", gpus=8)
    faults = "; ".join(size(QWEN3_14B, DEMAND, small).faults)
    assert "fewer than one sequence of 8192" in faults and "kv_tokens=300000" in faults
    lonely = "; ".join(size(QWEN3_14B, DEMAND._replace(learner_gpus=1), EIGHT).faults)
    assert "the learner takes" in lonely and "learner.gpus" in lonely
    many = "; ".join(size(QWEN3_14B, DEMAND._replace(generators=16), EIGHT).faults)
    assert "16 GPUs are asked for" in many


def test_gpus_of_their_own_leave_the_cache_alone() -> None:
    apart = size(QWEN3_14B, DEMAND._replace(generators=4, learner_gpus=4), EIGHT)
    assert not apart.shared
    assert apart.kv_capacity == int((0.9 * 141e9 - apart.engine_weights) / 163_840)
