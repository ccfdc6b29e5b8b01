"""From rollouts to the gradient of the weights, for every objective.

The expected gradient takes another way throughout: masks from the rollouts' spans, advantages and token gradients by
NumPy in float64, one sequence at a time through the library's own attention and logits.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from actors.learning.attention import ATTENTION
from actors.learning.trainer import Trainer
from policies import tokens
from policies.grouping import LearningBatch, add_groups
from policies.options import OBJECTIVES, ObjectiveOptions, OptimiserOptions
from policies.stages import ReinforcementOptions
from policies.trajectory import Span, Trajectory, Verdict, WeightsVersion
from tests.actors.learning.samples import VOCABULARY, batch, gradients, small_model, weights_of
from tests.policies.test_trajectory import trajectory
from tests.support.objective_reference import Sampled, advantages, loss_and_gradients

TEMPERATURE = 0.8
EVERYTHING_ON = {
    "name": "gspo", "ratio": "token", "kl_weight": 0.1, "entropy_weight": 0.05, "importance_cap": 1.5,
    "importance_band": (0.4, 2.5),
}  # fmt: skip


def double_model() -> PreTrainedModel:
    """In float64 throughout: the library's norms work in float32, where a last bit of float64 may turn into 1e-7."""
    model = small_model().double()
    for name, norm in list(model.named_modules()):
        if isinstance(norm, LlamaRMSNorm):
            exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
            exact.weight = norm.weight
            model.set_submodule(name, exact)
    return model  # type: ignore[return-value]


def library_scores(model: PreTrainedModel, ids: np.ndarray, at: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies at the positions `at`, with gradient, by the library alone."""
    row = torch.from_numpy(ids.astype(np.int64))[None]
    shares = (model(input_ids=row, use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)[at - 1]
    return shares.gather(-1, row[0, at, None])[:, 0], -(shares.exp() * shares).sum(-1)


def rollout(rng: np.random.Generator, model: PreTrainedModel, name: str, reward: float) -> Trajectory:
    """One to three turns of random tokens; the engine's log-probabilities lie around the model's."""
    turns = int(rng.integers(1, 4))
    parts = [("prompt", int(rng.integers(1, 5)))]
    for turn in range(turns):
        parts += [("tool", int(rng.integers(1, 4)))] if turn else []
        parts.append(("model", int(rng.integers(1, 6))))
    ids = rng.integers(0, VOCABULARY, sum(length for _, length in parts))
    with torch.no_grad():
        scores, _ = library_scores(model, ids, np.arange(1, len(ids)))
    engine = np.concatenate([[0.0], scores.numpy() + rng.normal(0, 0.3, len(scores))])
    spans, start = [], 0
    for kind, length in parts:
        part = slice(start, start + length)
        start += length
        sampled = {"logprobs": tokens.pack_floats(engine[part]), "version": WeightsVersion(0, 0)}
        fields = {"kind": kind, "ids": tokens.pack_ids(ids[part])} | (sampled if kind == "model" else {})
        spans.append(Span.model_validate(fields))
    verdict = Verdict(correct=reward > 0, reason="right" if reward > 0 else "wrong")
    return trajectory(*spans, id=name, turns=turns, reward=reward, verdict=verdict)


def random_groups(seed: int, model: PreTrainedModel) -> list[list[Trajectory]]:
    """Four groups: one whose rewards differ, one of a single rollout, one of equal rewards, one of any."""
    rng = np.random.default_rng(seed)
    rewards = [[1.0, 0.0, float(rng.integers(2))], [1.0], [0.0] * 3, list(rng.integers(0, 2, rng.integers(1, 6)) * 1.0)]
    return [
        [rollout(rng, model, f"{g}/{i}", float(reward)) for i, reward in enumerate(group)]
        for g, group in enumerate(rewards)
    ]


def expected_gradient(
    groups: list[list[Trajectory]], model: PreTrainedModel, reference: PreTrainedModel, options: ObjectiveOptions
) -> tuple[float, dict[str, torch.Tensor]]:
    """Of the loss with respect to the weights of `model`."""
    made: list[tuple[Sampled, np.ndarray, np.ndarray]] = []
    for number, group in enumerate(groups):
        rewards = [each.reward for each in group]
        if len(set(rewards)) == 1:
            continue
        for each, advantage in zip(group, advantages(rewards, options.advantage), strict=True):
            ids = np.concatenate([np.array(tokens.unpack_ids(span.ids)) for span in each.spans])
            kinds = np.concatenate([[span.kind] * tokens.count(span.ids) for span in each.spans])
            at = np.flatnonzero(kinds == "model")
            with torch.no_grad():
                current, entropies = (scores.numpy() for scores in library_scores(model, ids, at))
                held = library_scores(reference, ids, at)[0].numpy()
            engine = np.concatenate([tokens.unpack_floats(s.logprobs) for s in each.spans if s.kind == "model"])
            sampled = Sampled(
                current=current, engine=engine.astype(np.float64), advantage=float(advantage), group=number,
                reference=held, entropies=entropies,
            )  # fmt: skip
            made.append((sampled, ids, at))
    loss, to_logprobs, to_entropies = loss_and_gradients([sampled for sampled, _, _ in made], options)
    model.zero_grad()
    for (_, ids, at), of_logprobs, of_entropies in zip(made, to_logprobs, to_entropies, strict=True):
        logprobs, entropies = library_scores(model, ids, at)
        chained = logprobs @ torch.from_numpy(of_logprobs) + entropies @ torch.from_numpy(of_entropies)
        chained.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss, found


@pytest.mark.parametrize("parts", [*[{"name": name} for name in sorted(OBJECTIVES)], EVERYTHING_ON])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**16), micro=st.sampled_from([25, 500]))
def test_the_learners_gradient_is_numpys_through_the_librarys_own_logits(parts: dict, seed: int, micro: int) -> None:
    model, reference = double_model(), double_model()
    groups = random_groups(seed, model)
    stage = ReinforcementOptions.model_validate(
        {"kind": "reinforce", "steps": 1, "group": 8, "objective": parts, "limits": {"max_tokens": 40}}
    )
    learned = LearningBatch()
    add_groups(learned, groups, {t.id: t.reward for g in groups for t in g}, stage, random.Random(0))
    trainer = Trainer(model)
    trainer.begin_stage(
        OptimiserOptions(micro_batch_tokens=micro, gradient_clip=1e9), stage.objective, 1, temperature=TEMPERATURE
    )
    with torch.no_grad():  # the reference is the model as it was when the stage began
        for parameter in model.parameters():
            parameter.mul_(1.03)
    model.set_attn_implementation("sdpa")  # the eager one takes its softmax in float32
    reference.set_attn_implementation("sdpa")
    loss, expected = expected_gradient(groups, model, reference, stage.objective)
    model.set_attn_implementation(ATTENTION)
    figures: dict[str, float] = {}
    found = gradients(trainer, "reinforce", learned.sequences, figures)
    assert set(found) == set(expected)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in found.items():
        scale = float(expected[name].abs().max())
        # Where attention sees a single token, queries and keys get zero: its rounding has no digits to compare.
        bound = 1e-6 * scale + 1e-14 * largest
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=bound, msg=name)
    assert figures["loss"] == pytest.approx(loss, rel=1e-6, abs=1e-6)


def trainer(parts: dict, *, micro: int = 500, workers: int = 1, checkpointing: bool = False, **changes) -> Trainer:
    made = Trainer(small_model(**changes), workers)
    options = OptimiserOptions(
        learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=micro, gradient_clip=1e9,
        activation_checkpointing=checkpointing,
    )  # fmt: skip
    made.begin_stage(options, ObjectiveOptions.model_validate({"constant_tokens": 24} | parts), 10, TEMPERATURE)
    return made


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("parts", [*[{"name": name} for name in sorted(OBJECTIVES)], EVERYTHING_ON])
def test_packing_and_micro_batches_change_no_objectives_gradient(parts: dict, workers: int) -> None:
    sequences = batch(1)
    whole, alone = trainer(parts), trainer(parts, micro=24, workers=workers)
    one, many = gradients(whole, "reinforce", sequences), gradients(alone, "reinforce", sequences)
    for name, gradient in one.items():
        torch.testing.assert_close(many[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("parts", [{"name": "grpo_roc"}, EVERYTHING_ON])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_computing_activations_again_changes_nothing(parts: dict, workers: int, dtype: str) -> None:
    made = [trainer(parts, micro=60, workers=workers, checkpointing=on, dtype=dtype) for on in (False, True)]
    assert not any(layer.training for layer in made[0].model.modules())
    for step in range(3):
        kept, again = (each.step("reinforce", batch(step)) for each in made)
        assert again == kept
    torch.testing.assert_close(weights_of(made[1].model), weights_of(made[0].model), rtol=0, atol=0)


def test_fewer_activations_are_kept_when_they_are_computed_again() -> None:
    sizes = []
    for on in (False, True):
        made, kept = trainer({"name": "grpo_roc"}, checkpointing=on), []

        def pack(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made.step("reinforce", batch(2))
        sizes.append(sum(kept))
    assert sizes[1] < 0.4 * sizes[0]


def test_a_stage_without_checkpointing_after_one_with_it_keeps_activations_again() -> None:
    made = trainer({"name": "grpo_roc"}, checkpointing=True)
    made.begin_stage(OptimiserOptions(), ObjectiveOptions(), 1, 1.0)
    assert not made.model.is_gradient_checkpointing
    assert not any(module.training for module in made.model.modules())


def test_a_model_that_cannot_compute_activations_again_is_refused_and_no_stage_begins() -> None:
    made = trainer({"name": "grpo"})
    made.model.supports_gradient_checkpointing = False
    with pytest.raises(ValueError, match="set activation_checkpointing = false"):
        made.begin_stage(OptimiserOptions(activation_checkpointing=True), ObjectiveOptions(), 1, 1.0)
    with pytest.raises(ValueError, match="no stage has begun"):
        made.step("reinforce", batch(0))


def test_the_reference_is_the_model_as_the_stage_began() -> None:
    made = trainer({"name": "grpo", "kl_weight": 0.5})
    figures = [made.step("reinforce", batch(3))["reference_kl"] for _ in range(3)]
    assert figures[0] == 0.0 < figures[1] < figures[2]
    made.begin_stage(OptimiserOptions(), ObjectiveOptions(kl_weight=0.5), 1, TEMPERATURE)
    assert made.step("reinforce", batch(3))["reference_kl"] == 0.0


def test_a_kept_reference_is_that_of_the_stage_before() -> None:
    made = trainer({"name": "grpo", "kl_weight": 0.5})
    figures = [made.step("reinforce", batch(3))["reference_kl"] for _ in range(3)]
    kept = made.reference
    made.begin_stage(OptimiserOptions(), ObjectiveOptions(kl_weight=0.5), 1, TEMPERATURE, refresh_reference=False)
    assert made.reference is kept and made.step("reinforce", batch(3))["reference_kl"] > figures[2]
    made.begin_stage(OptimiserOptions(), ObjectiveOptions(), 1, TEMPERATURE, refresh_reference=False)
    assert made.reference is None, "a stage without the term needs none"


def test_a_kept_optimiser_goes_on_as_if_no_stage_had_begun() -> None:
    options = OptimiserOptions(learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=64)
    ends = {}
    for name, reset in (("one stage", None), ("kept", False), ("reset", True)):
        made = trainer({"name": "grpo"})
        made.begin_stage(options, ObjectiveOptions(), 10, TEMPERATURE)
        for seed in range(4):
            if seed == 2 and reset is not None:
                made.begin_stage(options, ObjectiveOptions(), 10, TEMPERATURE, reset_optimiser=reset)
                assert made.steps == 0
            made.step("reinforce", batch(seed))
        ends[name] = [parameter.detach() for parameter in made.model.parameters()]
    torch.testing.assert_close(ends["kept"], ends["one stage"], rtol=0, atol=0)
    assert not all(torch.equal(a, b) for a, b in zip(ends["reset"], ends["one stage"], strict=True))


def test_terms_apart_from_the_reward_move_sequences_without_advantage() -> None:
    idle = [each.model_copy(update={"advantage": 0.0}) for each in batch(4)]
    assert trainer({"name": "grpo"}).step("reinforce", idle)["skipped"] == 1.0
    made = trainer({"name": "grpo", "entropy_weight": 1.0})
    entropies = [made.step("reinforce", idle)["entropy"] for _ in range(8)]
    assert entropies[-1] > entropies[0] + 0.1  # a bonus, not a penalty


def test_bfloat16_masters_outlive_a_stage() -> None:
    made = trainer({"name": "grpo"}, dtype="bfloat16")
    made.step("reinforce", batch(5))
    masters = [master.detach().clone() for master in made.masters.parameters]
    assert any(not torch.equal(m, m.bfloat16().float()) for m in masters)
    made.begin_stage(OptimiserOptions(), ObjectiveOptions(), 1, 1.0)
    torch.testing.assert_close([m.detach() for m in made.masters.parameters], masters, rtol=0, atol=0)
    torch.testing.assert_close(
        [p.detach() for p in made.model.parameters()], [m.bfloat16() for m in masters], rtol=0, atol=0
    )
