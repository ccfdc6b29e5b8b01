"""Every objective and its gradient against float64 NumPy, with the formulas written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from policies.diagnostics import Diagnostics
from policies.objectives import SampledTokens, imitation_losses, policy_losses, token_weights, weighted_sum
from policies.options import OBJECTIVES, ObjectiveName, ObjectiveOptions
from tests.support.objective_reference import Sampled, loss_and_gradients

NAMES: list[ObjectiveName] = sorted(OBJECTIVES)


@st.composite
def objectives(draw) -> ObjectiveOptions:
    """A named objective, with some of its parts replaced."""
    parts = {
        "ratio": st.sampled_from(["token", "sequence"]),
        "surrogate": st.sampled_from(["pessimistic", "clipped_weight"]),
        "clip_low": st.floats(0.05, 1.0),
        "clip_high": st.floats(0.05, 2.0),
        "denominator": st.sampled_from(["batch_tokens", "group_tokens", "sequences", "constant"]),
        "importance_cap": st.floats(0.3, 3.0),
        "importance_band": st.just((0.5, 2.0)),
        "importance_level": st.sampled_from(["token", "sequence", "geometric"]),
        "kl_weight": st.floats(1e-3, 0.5),
        "entropy_weight": st.floats(1e-3, 0.5),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(parts)), max_size=4))
    given_parts = {name: draw(parts[name]) for name in sorted(chosen)}
    return ObjectiveOptions.model_validate({"name": draw(st.sampled_from(NAMES)), "constant_tokens": 7} | given_parts)


@st.composite
def batches(draw) -> list[Sampled]:
    """Sequences in groups, some of them with nothing to learn, some without advantage."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    later = draw(st.booleans())  # a second update of the batch, which has old log-probabilities
    made = []
    for n in lengths:
        current = -rng.exponential(2.0, n)
        made.append(
            Sampled(
                current=current,
                engine=current + rng.normal(0, 0.4, n),
                advantage=draw(st.just(0.0) | st.floats(-3, 3)),
                group=draw(st.integers(0, 3)),
                old=current + rng.normal(0, 0.3, n) if later else None,
                reference=current + rng.normal(0, 0.5, n),
                entropies=rng.exponential(1.0, n),
            )
        )
    return made


def tensors(batch: list[Sampled], part: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor, SampledTokens]:
    """Log-probabilities and entropies (with gradient), and the rest, of all sequences end to end."""

    def joined(values) -> torch.Tensor:
        return torch.tensor(np.concatenate([np.asarray(value, np.float64) for value in values]))

    lengths = [len(each.current) for each in batch[part]]
    old = [each.old for each in batch[part]]
    sampled = SampledTokens(
        engine_logprobs=joined([each.engine for each in batch[part]]),
        advantages=joined([np.full(n, each.advantage) for n, each in zip(lengths, batch[part], strict=True)]),
        owners=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        old_logprobs=None if any(each is None for each in old) else joined(old),
        reference_logprobs=joined([each.reference for each in batch[part]]),
    )
    current, entropies = (
        joined([each.current for each in batch[part]]), joined([each.entropies for each in batch[part]])
    )  # fmt: skip
    return current.requires_grad_(), entropies.requires_grad_(), sampled


def weights_of(batch: list[Sampled], options: ObjectiveOptions) -> list[float]:
    lengths, groups = [len(each.current) for each in batch], [each.group for each in batch]
    return token_weights(lengths, groups, options.denominator, options.constant_tokens)


def per_token(batch: list[Sampled], options: ObjectiveOptions, part: slice = slice(None)) -> torch.Tensor:
    lengths = [len(each.current) for each in batch[part]]
    return torch.tensor(np.repeat(np.array(weights_of(batch, options)[part], np.float64), lengths))


def compare(batch: list[Sampled], options: ObjectiveOptions) -> None:
    current, entropies, sampled = tensors(batch)
    losses, _ = policy_losses(current, sampled, options, entropies)
    loss = weighted_sum(losses, per_token(batch, options))
    loss.backward()
    expected, to_logprobs, to_entropies = loss_and_gradients(batch, options)
    assert current.grad is not None
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(current.grad.numpy(), np.concatenate(to_logprobs), rtol=1e-6, atol=1e-12)
    if options.entropy_weight:
        assert entropies.grad is not None
        np.testing.assert_allclose(entropies.grad.numpy(), np.concatenate(to_entropies), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_each_named_objective_and_its_gradient_are_those_of_numpy(name, batch) -> None:
    compare(batch, ObjectiveOptions(name=name, constant_tokens=11))


@settings(max_examples=150, deadline=None)
@given(batch=batches(), options=objectives())
def test_so_are_all_combinations_of_parts(batch, options) -> None:
    compare(batch, options)


@settings(deadline=None)
@given(batch=batches(), options=objectives(), cut=st.integers(0, 8))
def test_cutting_a_step_into_passes_changes_neither_loss_nor_figures(batch, options, cut) -> None:
    def run(part: slice) -> tuple[float, Diagnostics]:
        current, entropies, sampled = tensors(batch, part)
        losses, figures = policy_losses(current, sampled, options, entropies)
        return weighted_sum(losses, per_token(batch, options, part)).item(), figures

    whole, expected = run(slice(None))
    parts = [part for part in (slice(0, cut), slice(cut, None)) if batch[part]]
    results = [run(part) for part in parts]
    merged = Diagnostics()
    for _, figures in results:
        merged.merge(figures)
    assert sum(loss for loss, _ in results) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert merged.metrics(options) == pytest.approx(expected.metrics(options), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cap", [None, 2.0])
def test_absurd_log_probabilities_keep_losses_and_gradients_finite(name: ObjectiveName, cap: float | None) -> None:
    extremes = [0.0, -1e-30, -50.0, -1e4, -1e30]
    pairs = np.array([(a, b, c) for a in extremes for b in extremes for c in (-2.0, 0.0, 2.0)], np.float32)
    current, engine, advantages = (torch.tensor(column.copy()) for column in pairs.T)
    current.requires_grad_()
    sampled = SampledTokens(engine, advantages, torch.arange(len(pairs)) // 3, reference_logprobs=engine)
    options = ObjectiveOptions(
        name=name, importance_cap=cap, importance_band=(0.5, 2.0) if cap else None, kl_weight=0.1,
        constant_tokens=5,
    )  # fmt: skip
    losses, _ = policy_losses(current, sampled, options)
    losses.sum().backward()
    assert current.grad is not None
    assert torch.isfinite(losses).all() and torch.isfinite(current.grad).all()


@given(batch=batches(), denominator=st.sampled_from(["batch_tokens", "group_tokens", "sequences"]))
def test_weights_of_a_step_sum_to_one(batch, denominator) -> None:
    lengths = [len(each.current) for each in batch]
    weights = weights_of(batch, ObjectiveOptions(denominator=denominator))
    assert math.fsum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1.0)


def test_denominators_weigh_tokens_groups_or_sequences_alike() -> None:
    lengths, groups = [1, 3, 12], [0, 0, 1]
    assert token_weights(lengths, groups, "batch_tokens") == pytest.approx([1 / 16] * 3)
    assert token_weights(lengths, groups, "group_tokens") == pytest.approx([1 / 8, 1 / 8, 1 / 24])
    assert token_weights(lengths, groups, "sequences") == pytest.approx([1 / 3, 1 / 9, 1 / 36])
    assert token_weights(lengths, groups, "constant", 100) == pytest.approx([1 / 300] * 3)


@pytest.mark.parametrize("denominator", ["group_tokens", "sequences", "constant"])
def test_what_has_nothing_to_learn_does_not_thin_out_the_rest(denominator) -> None:
    alone, beside = token_weights([4], [0], denominator, 9), token_weights([4, 0], [0, 1], denominator, 9)
    assert beside == [alone[0], 0.0]


def test_a_constant_denominator_needs_its_constant() -> None:
    with pytest.raises(ValueError, match="constant_tokens is not set"):
        token_weights([1], [0], "constant")


def test_on_the_first_update_a_cap_leaves_ratios_at_one() -> None:
    engine = torch.tensor([-1.0, -2.0, -0.5])
    sampled = SampledTokens(engine, torch.ones(3), torch.zeros(3, dtype=torch.long))
    losses, figures = policy_losses(engine + 1.0, sampled, ObjectiveOptions(importance_cap=2.0))
    torch.testing.assert_close(losses, torch.full((3,), -2.0))
    metrics = figures.metrics(ObjectiveOptions(importance_cap=2.0))
    assert metrics["ratio_max"] == metrics["ratio_min"] == 1.0 and metrics["importance_capped_share"] == 1.0


def test_diagnostics_say_how_far_engine_and_learner_are_apart() -> None:
    engine = np.array([-1.0, -2.0, -0.5, -3.0, -4.0])
    gap = np.array([0.5, -0.5, 0.01, 0.0, -1.0])
    advantages = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    sampled = SampledTokens(torch.tensor(engine), torch.tensor(advantages), torch.arange(5))
    current = torch.tensor(engine + gap)
    _, figures = policy_losses(current, sampled, ObjectiveOptions())
    assert figures.metrics(ObjectiveOptions()) == pytest.approx(
        {
            "clip_share": 0.4,
            "clip_high_share": 0.2,
            "clip_low_share": 0.2,
            "ratio_mean": np.exp(gap).mean(),
            "ratio_max": np.exp(0.5),
            "ratio_min": np.exp(-1.0),
            "ratio_tail_share": 0.2,
            "engine_mismatch_mean_abs": np.abs(gap).mean(),
            "engine_mismatch_max": 1.0,
            "engine_mismatch_tail_share": 0.2,
            "mismatch_kl": (np.exp(gap) - 1 - gap).mean(),
            "importance_capped_share": 0.0,
        }
    )
    options = ObjectiveOptions(importance_cap=1.5, importance_band=(0.5, 5.0), kl_weight=0.1)
    _, corrected = policy_losses(current, sampled._replace(reference_logprobs=torch.tensor(engine)), options)
    metrics = corrected.metrics(options)
    assert (metrics["importance_capped_share"], metrics["importance_masked_share"]) == (0.2, 0.2)
    assert metrics["reference_kl"] == pytest.approx((np.exp(-gap) - 1 + gap).mean())
    assert metrics["ratio_max"] == 1.0


def test_no_tokens_are_no_fault() -> None:
    empty, nobody = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    for name in NAMES:
        options = ObjectiveOptions(name=name)
        losses, figures = policy_losses(empty, SampledTokens(empty, empty, nobody), options)
        assert len(losses) == 0 and figures.metrics(options) == {}


def test_imitation_is_cross_entropy() -> None:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(7)
    logprobs = logits.log_softmax(-1)[torch.arange(7), targets]
    weights = torch.tensor(token_weights([3, 4], [0, 0], "batch_tokens"), dtype=torch.float64)
    loss = weighted_sum(imitation_losses(logprobs), weights.repeat_interleave(torch.tensor([3, 4])))
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, targets).item())


def test_a_name_sets_the_parts_and_a_part_replaces_the_names() -> None:
    gspo = ObjectiveOptions.model_validate({"name": "gspo", "clip_high": 0.01})
    assert (gspo.ratio, gspo.denominator, gspo.clip_low, gspo.clip_high) == ("sequence", "sequences", 3e-4, 0.01)
    assert ObjectiveOptions.model_validate(gspo.model_dump()) == gspo
    assert ObjectiveOptions() == ObjectiveOptions(name="grpo_roc")


def test_a_band_upside_down_is_refused() -> None:
    with pytest.raises(ValidationError, match="low below high"):
        ObjectiveOptions(importance_band=(2.0, 0.5))
