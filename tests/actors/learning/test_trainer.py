"""Optimiser steps: how a step is cut changes nothing, masks hold, what can't be trained on is refused."""

import numpy as np
import pytest
import torch

from actors.learning.trainer import NonFiniteStep, Trainer
from policies import tokens
from policies.batch import TrainingSequence
from policies.options import ObjectiveOptions, OptimiserOptions
from tests.actors.learning.samples import batch, gradients, small_model, weights_of


def trainer(
    *, rate: float = 1e-2, micro: int = 500, temperature: float = 1.0, clip: float = 1.0, workers: int = 1, **objective
) -> Trainer:
    made = Trainer(small_model(), workers)
    options = OptimiserOptions(learning_rate=rate, warmup_steps=0, micro_batch_tokens=micro, gradient_clip=clip)
    made.begin_stage(options, ObjectiveOptions(**objective), total_steps=10, temperature=temperature)
    return made


@pytest.mark.parametrize("kind", ["fine_tune", "reinforce"])
@pytest.mark.parametrize("denominator", ["batch_tokens", "group_tokens"])
@pytest.mark.parametrize("workers", [1, 3])
def test_cutting_a_step_into_micro_batches_changes_neither_gradient_nor_figures(kind, denominator, workers) -> None:
    sequences = batch(1, sampled=kind == "reinforce")
    whole = trainer(denominator=denominator, clip=1e9)
    cut = trainer(micro=30, workers=workers, denominator=denominator, clip=1e9)
    one, many = gradients(whole, kind, sequences), gradients(cut, kind, sequences)
    for name, gradient in one.items():
        torch.testing.assert_close(many[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))
    first, second = (made.step(kind, sequences) for made in (whole, cut))
    assert (first.pop("micro_batches"), second.pop("micro_batches") > 3) == (1.0, True)
    # After one AdamW step: where a gradient is near zero, its sign is noise, and so is the step.
    assert second == pytest.approx(first, rel=5e-3, abs=1e-3)


def test_the_denominators_differ_and_both_are_those_of_the_formula() -> None:
    """Loss by hand from the library's own log-probabilities: first update, so ratios come from the stored ones."""
    sequences = batch(2, sampled=True)
    model = small_model()
    model.set_attn_implementation("eager")
    losses: list[tuple[int, float, int]] = []
    for sequence in sequences:
        ids = torch.tensor(tokens.unpack_ids(sequence.ids))[None]
        with torch.no_grad():
            shares = (model(input_ids=ids, use_cache=False).logits[0].double() / 0.8).log_softmax(-1).numpy()
        total = 0.0
        engine = tokens.unpack_floats(sequence.logprobs)
        for at, mark in enumerate(sequence.learned):
            if mark:
                ratio = np.exp(shares[at - 1, ids[0, at]] - engine[at])
                total -= min(ratio * sequence.advantage, np.clip(ratio, 0.8, 1.28) * sequence.advantage)
        losses.append((sequence.group, total, sequence.learned_tokens))
    by_tokens = sum(loss for _, loss, _ in losses) / sum(n for _, _, n in losses)
    groups = {group for group, _, _ in losses}
    by_groups = np.mean(
        [sum(x for g, x, _ in losses if g == each) / sum(n for g, _, n in losses if g == each) for each in groups]
    )
    for denominator, expected in (("batch_tokens", by_tokens), ("group_tokens", by_groups)):
        metrics = trainer(denominator=denominator, temperature=0.8).step("reinforce", sequences)
        assert metrics["loss"] == pytest.approx(expected, rel=2e-5)
    assert by_groups != pytest.approx(by_tokens, rel=1e-2)


def test_prompt_and_tool_tokens_get_no_gradient() -> None:
    made, sequences = trainer(micro=500), batch(3)
    caught = []

    def keep(_module, _inputs, output) -> None:
        output.last_hidden_state.retain_grad()
        caught.append(output.last_hidden_state)

    handle = made.model.base_model.register_forward_hook(keep)
    made.step("reinforce", sequences)
    handle.remove()
    (hidden,) = caught
    moved = hidden.grad[0].abs().sum(-1) > 0
    order = sorted(range(len(sequences)), key=lambda i: (-sequences[i].length, i))
    learned = np.frombuffer(b"".join(sequences[i].learned for i in order), np.uint8).astype(bool)
    predictors = np.roll(learned, -1)  # the first token of a sequence is never learned: nothing rolls over a boundary
    assert not moved[~torch.from_numpy(predictors)].any()
    assert moved.sum() > 0.5 * predictors.sum()  # clipped tokens have none either


@pytest.mark.parametrize("kind", ["fine_tune", "reinforce"])
def test_what_masked_tokens_are_said_to_be_sampled_with_changes_nothing(kind) -> None:
    sequences = batch(4)
    garbled = []
    for sequence in sequences:
        learned = np.frombuffer(sequence.learned, np.uint8)
        noise = np.where(learned, tokens.unpack_floats(sequence.logprobs), -7.0)
        garbled.append(sequence.model_copy(update={"logprobs": tokens.pack_floats(noise)}))
    one, other = trainer(), trainer()
    assert one.step(kind, sequences) == other.step(kind, garbled)
    torch.testing.assert_close(weights_of(one.model), weights_of(other.model), rtol=0, atol=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_same_start_same_end_bit_for_bit(workers: int) -> None:
    ends = []
    for _ in range(2):
        made = trainer(micro=40, workers=workers)
        for step in range(3):
            made.step("reinforce", batch(step))
        ends.append(weights_of(made.model))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def test_fine_tuning_lowers_the_loss_of_learned_tokens() -> None:
    made, sequences = trainer(rate=5e-3), batch(5, sampled=False)
    losses = [made.step("fine_tune", sequences)["loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_fine_tuning_takes_the_mean_over_all_learned_tokens() -> None:
    sequences = batch(6, sampled=False)
    model = small_model()
    model.set_attn_implementation("eager")
    total, count = 0.0, 0
    for sequence in sequences:
        ids = torch.tensor(tokens.unpack_ids(sequence.ids))[None]
        labels = torch.where(torch.tensor(list(sequence.learned)) == 1, ids[0], -100)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="sum"))
        count += int((labels != -100).sum())
    metrics = trainer(temperature=0.3).step("fine_tune", sequences)
    assert metrics["loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["learned_tokens"] == count


def test_reinforcement_makes_good_sequences_likelier_and_bad_ones_less() -> None:
    made = trainer(rate=3e-3)
    rng = np.random.default_rng(0)
    good, bad = (rng.integers(0, 40, 12) for _ in range(2))
    learned = bytes([0] * 4 + [1] * 8)

    def sequences() -> list[TrainingSequence]:
        blank = tokens.pack_floats(np.zeros(12))
        made_now = [
            TrainingSequence(ids=tokens.pack_ids(ids), learned=learned, logprobs=blank, advantage=advantage)
            for ids, advantage in ((good, 1.0), (bad, -1.0))
        ]
        return [s.model_copy(update={"logprobs": tokens.pack_floats(current(s))}) for s in made_now]

    def current(sequence: TrainingSequence) -> np.ndarray:
        ids = torch.tensor(tokens.unpack_ids(sequence.ids))[None]
        with torch.no_grad():
            shares = made.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        values = np.zeros(12, np.float32)
        values[4:] = shares[torch.arange(3, 11), ids[0, 4:]].numpy()
        return values

    before = [current(s).sum() for s in sequences()]
    for _ in range(5):
        metrics = made.step("reinforce", sequences())
        assert metrics["engine_mismatch_max"] < 1e-4 and metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    after = [current(s).sum() for s in sequences()]
    assert after[0] > before[0] + 1 and after[1] < before[1] - 1


def test_importance_cap_weighs_tokens_that_the_engine_overrated() -> None:
    sequences = batch(7)
    plain, capped = trainer().step("reinforce", sequences), trainer(importance_cap=2.0).step("reinforce", sequences)
    assert capped["ratio_mean"] == 1.0 and capped["clip_share"] == 0.0
    assert 0 < capped["importance_capped_share"] < 1
    assert capped["engine_mismatch_mean_abs"] == plain["engine_mismatch_mean_abs"]
    assert capped["loss"] != pytest.approx(plain["loss"], rel=1e-3)


def test_rows_are_cut_so_that_every_worker_has_some() -> None:
    long = batch(15, count=300)
    tokens_in_all = sum(s.length for s in long)
    assert tokens_in_all > 3000
    one, several = trainer(micro=10**6), trainer(micro=10**6, workers=2)
    assert one.step("reinforce", long)["micro_batches"] == 1
    assert several.step("reinforce", long)["micro_batches"] == -(-tokens_in_all // 1024)


def test_a_failing_worker_fails_the_step_and_leaves_the_weights() -> None:
    made = trainer(micro=30, workers=2)
    before = weights_of(made.model)

    def fail(_module, _inputs) -> None:
        raise RuntimeError("out of memory")

    handle = made.model.base_model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        made.step("reinforce", batch(16))
    handle.remove()
    torch.testing.assert_close(weights_of(made.model), before, rtol=0, atol=0)
    assert made.step("reinforce", batch(16))["skipped"] == 0.0


def test_sequences_without_advantage_count_in_the_denominator_only() -> None:
    sequences = batch(8)
    idle = [s.model_copy(update={"advantage": 0.0}) for s in batch(9)]
    alone, diluted = trainer().step("reinforce", sequences), trainer().step("reinforce", [*sequences, *idle])
    share = alone["learned_tokens"] / diluted["learned_tokens"]
    assert diluted["loss"] == pytest.approx(alone["loss"] * share, rel=1e-4)
    assert diluted["engine_mismatch_mean_abs"] == pytest.approx(alone["engine_mismatch_mean_abs"], rel=1e-5)


@pytest.mark.parametrize("kind", ["fine_tune", "reinforce"])
def test_a_step_with_nothing_to_learn_changes_nothing(kind) -> None:
    made = trainer()
    before = weights_of(made.model)
    silent = [s.model_copy(update={"advantage": 0.0, "learned": bytes(s.length)}) for s in batch(10)]
    for sequences in ([], silent):
        metrics = made.step(kind, sequences)
        assert metrics["skipped"] == 1.0 and metrics["learned_tokens"] == 0.0
    torch.testing.assert_close(weights_of(made.model), before, rtol=0, atol=0)
    assert made.steps == 0


def test_gradients_are_clipped_to_their_norm_and_the_metric_is_the_norm_before() -> None:
    loose, tight = trainer(clip=1e9), trainer(clip=1e-3)
    free, held = (gradients(made, "reinforce", batch(11)) for made in (loose, tight))
    norm = float(torch.sqrt(sum((g.double() ** 2).sum() for g in free.values())))  # type: ignore[arg-type]
    assert float(torch.sqrt(sum((g.double() ** 2).sum() for g in held.values()))) == pytest.approx(1e-3, rel=1e-3)  # type: ignore[arg-type]
    assert trainer(clip=1e-3).step("reinforce", batch(11))["gradient_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("broken", [{"advantage": float("inf")}, {"advantage": float("nan")}])
def test_a_step_that_is_not_finite_raises_and_leaves_the_weights(broken) -> None:
    made, sequences = trainer(), list(batch(12))
    before = weights_of(made.model)
    sequences[0] = sequences[0].model_copy(update=broken)
    with pytest.raises(NonFiniteStep, match="weights were left as they are"):
        made.step("reinforce", sequences)
    torch.testing.assert_close(weights_of(made.model), before, rtol=0, atol=0)
    assert made.step("reinforce", batch(12))["skipped"] == 0.0


def test_beginning_a_stage_starts_the_optimiser_afresh() -> None:
    made, fresh = trainer(), trainer()
    made.step("reinforce", batch(13))
    fresh.model.load_state_dict(made.model.state_dict())
    made.begin_stage(OptimiserOptions(learning_rate=1e-2, warmup_steps=4), ObjectiveOptions(), 10, 1.0)
    fresh.begin_stage(OptimiserOptions(learning_rate=1e-2, warmup_steps=4), ObjectiveOptions(), 10, 1.0)
    one, other = made.step("reinforce", batch(14)), fresh.step("reinforce", batch(14))
    assert one == other and one["learning_rate"] == pytest.approx(2.5e-3)
    torch.testing.assert_close(weights_of(made.model), weights_of(fresh.model), rtol=0, atol=0)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="send BeginStage"):
        Trainer(small_model()).step("fine_tune", batch(0))
    with pytest.raises(ValueError, match="vocabulary of 40"):
        trainer().step("fine_tune", [TrainingSequence(ids=tokens.pack_ids([1, 40]), learned=b"\0\1")])
    with pytest.raises(ValueError, match="no sampled log-probabilities"):
        trainer().step("reinforce", batch(0, sampled=False))
    with pytest.raises(ValueError, match="temperature is 0"):
        trainer(temperature=0.0)
