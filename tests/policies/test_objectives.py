"""The clipped objective and its gradient against float64 NumPy, with the formulas written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.objectives import (
    Diagnostics,
    SampledTokens,
    clipped_losses,
    imitation_losses,
    token_weights,
    weighted_sum,
)
from policies.options import ObjectiveOptions


def reference(current, engine, advantages, weights, low, high, cap=None, old=None):
    """Loss and gradient with respect to `current`; float64 `[n]` arrays."""
    if cap is None:
        old, importance = engine, np.ones_like(engine)
    else:
        old = current if old is None else old
        importance = np.minimum(np.exp(old - engine), cap)
    ratio = np.exp(current - old)
    loss, gradient = 0.0, np.zeros_like(current)
    for t in range(len(current)):
        free = ratio[t] * advantages[t]
        bounded = min(max(ratio[t], 1 - low), 1 + high) * advantages[t]
        loss -= weights[t] * importance[t] * min(free, bounded)
        if free <= bounded:
            gradient[t] = -weights[t] * importance[t] * ratio[t] * advantages[t]
    return loss, gradient


@st.composite
def batches(draw):
    """Sequences in groups: learned tokens, groups, advantages, and a seed for the log-probabilities."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
    groups = [draw(st.integers(0, 3)) for _ in lengths]
    advantages = [draw(st.floats(-3, 3)) for _ in lengths]
    return lengths, groups, advantages, draw(st.integers(0, 2**20))


def arrays(lengths, advantages, seed):
    rng = np.random.default_rng(seed)
    current = -rng.exponential(2.0, sum(lengths))
    engine = current + rng.normal(0, 0.4, sum(lengths))
    return current, engine, np.repeat(np.array(advantages), lengths)


@given(
    batch=batches(),
    low=st.floats(0.05, 0.9),
    high=st.floats(0.05, 2.0),
    cap=st.none() | st.floats(0.3, 3.0),
    denominator=st.sampled_from(["batch_tokens", "group_tokens"]),
)
def test_loss_and_gradient_are_those_of_numpy(batch, low, high, cap, denominator) -> None:
    lengths, groups, advantages, seed = batch
    current, engine, per_token = arrays(lengths, advantages, seed)
    weights = np.repeat(token_weights(lengths, groups, denominator), lengths)
    options = ObjectiveOptions(clip_low=low, clip_high=high, importance_cap=cap, denominator=denominator)
    logprobs = torch.tensor(current, requires_grad=True)
    sampled = SampledTokens(torch.tensor(engine), torch.tensor(per_token))
    losses, _ = clipped_losses(logprobs, sampled, options)
    loss = weighted_sum(losses, torch.tensor(weights))
    loss.backward()
    expected, gradient = reference(current, engine, per_token, weights, low, high, cap)
    assert logprobs.grad is not None
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(logprobs.grad.numpy(), gradient, rtol=1e-6, atol=1e-12)


@given(batch=batches(), cap=st.floats(0.3, 3.0))
def test_later_updates_measure_the_ratio_from_the_learners_old_logprobs(batch, cap) -> None:
    lengths, groups, advantages, seed = batch
    current, engine, per_token = arrays(lengths, advantages, seed)
    old = current + np.random.default_rng(seed + 1).normal(0, 0.3, len(current))
    weights = np.repeat(token_weights(lengths, groups, "batch_tokens"), lengths)
    logprobs = torch.tensor(current, requires_grad=True)
    sampled = SampledTokens(torch.tensor(engine), torch.tensor(per_token), torch.tensor(old))
    losses, _ = clipped_losses(logprobs, sampled, ObjectiveOptions(importance_cap=cap))
    weighted_sum(losses, torch.tensor(weights)).backward()
    assert logprobs.grad is not None
    _, gradient = reference(current, engine, per_token, weights, 0.2, 0.28, cap, old)
    np.testing.assert_allclose(logprobs.grad.numpy(), gradient, rtol=1e-6, atol=1e-12)


@given(batch=batches(), cut=st.integers(0, 80), cap=st.none() | st.just(2.0))
def test_cutting_a_step_into_passes_changes_neither_loss_nor_figures(batch, cut, cap) -> None:
    lengths, groups, advantages, seed = batch
    current, engine, per_token = arrays(lengths, advantages, seed)
    weights = torch.tensor(np.repeat(token_weights(lengths, groups, "group_tokens"), lengths))
    options = ObjectiveOptions(importance_cap=cap)

    def run(part: slice):
        sampled = SampledTokens(torch.tensor(engine[part]), torch.tensor(per_token[part]))
        losses, figures = clipped_losses(torch.tensor(current[part]), sampled, options)
        return weighted_sum(losses, weights[part]).item(), figures

    whole, expected = run(slice(None))
    merged, total = Diagnostics(), 0.0
    for part in (slice(0, cut), slice(cut, None)):
        loss, figures = run(part)
        merged.merge(figures)
        total += loss
    assert total == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert merged.metrics() == pytest.approx(expected.metrics(), rel=1e-9, abs=1e-12)


@given(batch=batches(), denominator=st.sampled_from(["batch_tokens", "group_tokens"]))
def test_weights_of_a_step_sum_to_one(batch, denominator) -> None:
    lengths, groups, _, _ = batch
    weights = token_weights(lengths, groups, denominator)
    assert math.fsum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1.0)


def test_group_tokens_weighs_groups_alike_and_batch_tokens_weighs_tokens_alike() -> None:
    lengths, groups = [1, 3, 12], [0, 0, 1]
    assert token_weights(lengths, groups, "batch_tokens") == pytest.approx([1 / 16] * 3)
    assert token_weights(lengths, groups, "group_tokens") == pytest.approx([1 / 8, 1 / 8, 1 / 24])


def test_a_group_without_learned_tokens_does_not_thin_out_the_others() -> None:
    assert token_weights([4, 0], [0, 1], "group_tokens") == pytest.approx([1 / 4, 0.0])


def test_diagnostics_say_how_far_engine_and_learner_are_apart() -> None:
    engine = np.array([-1.0, -2.0, -0.5, -3.0])
    gap = np.array([0.5, -0.5, 0.01, 0.0])
    advantages = np.array([1.0, -1.0, 1.0, -1.0])
    sampled = SampledTokens(torch.tensor(engine), torch.tensor(advantages))
    _, figures = clipped_losses(torch.tensor(engine + gap), sampled, ObjectiveOptions())
    assert figures.metrics() == pytest.approx(
        {
            "clip_share": 0.5,
            "ratio_mean": np.exp(gap).mean(),
            "ratio_max": np.exp(0.5),
            "engine_mismatch_mean_abs": np.abs(gap).mean(),
            "engine_mismatch_max": 0.5,
            "mismatch_kl": (np.exp(gap) - 1 - gap).mean(),
            "importance_capped_share": 0.0,
        }
    )
    _, capped = clipped_losses(torch.tensor(engine + gap), sampled, ObjectiveOptions(importance_cap=1.5))
    assert capped.metrics()["importance_capped_share"] == 0.25
    assert capped.metrics()["ratio_max"] == 1.0


def test_no_tokens_are_no_fault() -> None:
    empty = torch.zeros(0)
    losses, figures = clipped_losses(empty, SampledTokens(empty, empty), ObjectiveOptions())
    assert len(losses) == 0 and figures.metrics() == {}


def test_imitation_is_cross_entropy() -> None:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(7)
    logprobs = logits.log_softmax(-1)[torch.arange(7), targets]
    weights = torch.tensor(token_weights([3, 4], [0, 0], "batch_tokens"), dtype=torch.float64)
    loss = weighted_sum(imitation_losses(logprobs), weights.repeat_interleave(torch.tensor([3, 4])))
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, targets).item())
