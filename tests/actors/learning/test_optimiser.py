"""The schedule, what decays, and which optimiser moves what."""

import math

import pytest
import torch

from actors.learning.master_weights import MasterWeights
from actors.learning.optimiser import StageOptimiser, rate_share
from policies.options import MuonOptions, OptimiserOptions
from tests.actors.learning.samples import small_model


def shares(total: int, **options) -> list[float]:
    return [rate_share(step, OptimiserOptions(**options), total) for step in range(total)]


def test_warm_up_rises_evenly_to_the_full_rate_and_stays() -> None:
    assert shares(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_cosine_falls_from_the_full_rate_towards_zero_at_the_end() -> None:
    expected = [0.5, 1.0] + [0.5 + 0.5 * math.cos(math.pi * k / 4) for k in range(4)]
    assert shares(6, warmup_steps=2, schedule="cosine") == pytest.approx(expected)


def test_steps_beyond_the_planned_total_do_not_turn_back_up() -> None:
    options = OptimiserOptions(warmup_steps=0, schedule="cosine")
    assert rate_share(11, options, 10) == rate_share(50, options, 10) == pytest.approx(0.0)


def test_no_warm_up_starts_at_the_full_rate() -> None:
    assert shares(2, warmup_steps=0) == [1.0, 1.0]


def test_only_matrices_decay() -> None:
    model = small_model()
    optimiser = StageOptimiser(MasterWeights(model), OptimiserOptions(weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimiser.groups for p in group["params"]}
    assert decay == {id(p): 0.5 if p.ndim >= 2 else 0.0 for p in model.parameters()}


@pytest.mark.parametrize("muon", [None, MuonOptions(learning_rate=0.02)])
def test_every_parameter_is_moved_by_one_part_only(muon: MuonOptions | None) -> None:
    model = small_model()
    optimiser = StageOptimiser(MasterWeights(model), OptimiserOptions(muon=muon))
    moved = [id(p) for group in optimiser.groups for p in group["params"]]
    assert sorted(moved) == sorted(id(p) for p in model.parameters())


def test_muon_turns_a_matrix_by_a_step_of_equal_singular_values_and_leaves_embeddings_to_adamw() -> None:
    model = small_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    options = OptimiserOptions(learning_rate=1e-3, weight_decay=0.0, muon=MuonOptions(learning_rate=0.01))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    StageOptimiser(MasterWeights(model), options).step(0.5)
    for name, parameter in model.named_parameters():
        step = before[name] - parameter.detach()
        assert parameter.grad is not None
        if "embed" in name or "norm" in name:  # AdamW's first step: its rate, against each gradient's sign
            torch.testing.assert_close(step, 0.5e-3 * parameter.grad.sign(), rtol=1e-2, atol=1e-6)
        else:
            # Newton-Schulz brings singular values to about 1 (0.7 to 1.2, Jordan 2024), and the rate is scaled by
            # 0.2 sqrt(longer side).
            values = torch.linalg.svdvals(step) / (0.5 * 0.01 * 0.2 * math.sqrt(max(step.shape)))
            assert 0.3 < values.min() and values.max() < 1.4, (name, values)


def test_gradients_are_forgotten() -> None:
    for dtype in ("float32", "bfloat16"):
        model = small_model(dtype=dtype)
        masters = MasterWeights(model)
        for parameter in [*model.parameters(), *masters.parameters]:
            parameter.grad = torch.ones_like(parameter)
        masters.zero_grad()
        assert all(parameter.grad is None for parameter in [*model.parameters(), *masters.parameters])


def test_float32_weights_are_their_own_masters() -> None:
    model = small_model()
    assert [id(p) for p in MasterWeights(model).parameters] == [id(p) for p in model.parameters()]


@pytest.mark.parametrize("muon", [None, MuonOptions(learning_rate=1e-4)])
def test_updates_too_small_for_bfloat16_add_up_in_the_masters(muon: MuonOptions | None) -> None:
    """A float32 model that sees the same gradients moves by the same steps; the bfloat16 one is its rounding."""
    exact, rough = small_model(), small_model(dtype="bfloat16")
    exact.load_state_dict(rough.state_dict())
    options = OptimiserOptions(learning_rate=1e-4, weight_decay=0.0, muon=muon)
    masters = {id(model): MasterWeights(model) for model in (exact, rough)}
    optimisers = [StageOptimiser(masters[id(model)], options) for model in (exact, rough)]
    start = {name: p.detach().clone() for name, p in rough.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(p.shape, generator=generator).bfloat16() for p in rough.parameters()]
    for _ in range(40):
        for model, optimiser in zip((exact, rough), optimisers, strict=True):
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter.grad = direction.to(parameter.dtype)
            masters[id(model)].collect()
            optimiser.step(1.0)
            masters[id(model)].zero_grad()
    states = [state for part in optimisers[1]._parts for state in part.state.values()]
    assert all(v.dtype == torch.float32 for state in states for v in state.values() if isinstance(v, torch.Tensor))
    for (name, weight), precise in zip(rough.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(weight, precise.to(torch.bfloat16), rtol=0, atol=0, msg=name)
        # One update of 1e-4 is less than a bfloat16's step next to 1.0; forty are not.
        if "norm" in name:
            assert not torch.equal(weight, start[name]), name


def test_micro_batches_add_up_in_float32() -> None:
    model = small_model(dtype="bfloat16")
    masters = MasterWeights(model)
    for _ in range(300):  # in bfloat16 the sum would stop at 256: 256 + 1 rounds to 256
        for weight in masters.weights:
            weight.grad = torch.ones_like(weight)
        masters.collect()
    assert all(p.grad is not None and (p.grad == 300).all() for p in masters.parameters)
    assert all(weight.grad is None for weight in masters.weights)


def test_tied_weights_have_one_master() -> None:
    model = small_model(dtype="bfloat16", tie_embeddings=True)
    assert len(MasterWeights(model).parameters) == len(list(model.parameters()))
