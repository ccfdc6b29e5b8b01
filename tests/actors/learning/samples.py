"""Small models and random batches for the tests of learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from actors.learning.model import ModelSpec, build_model
from actors.learning.trainer import Trainer
from orchestration.tiny_model import write_tokenizer
from policies import tokens
from policies.batch import TrainingSequence

VOCABULARY = 40
SMALL = ModelSpec(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate_size=48, max_positions=128)


def small_model(seed: int = 0, **changes: Any) -> PreTrainedModel:
    model = build_model(SMALL.model_copy(update=changes), vocabulary=VOCABULARY, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():  # the library's 0.02 makes all tokens nearly alike
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model


def sequence(rng: np.random.Generator, length: int, *, sampled: bool, group: int = 0, advantage: float = 1.0):
    """A random sequence whose first token and about a third of the others are not learned."""
    learned = (rng.random(length) < 0.7).astype(np.uint8)
    learned[0] = 0
    logprobs = np.where(learned, -rng.exponential(3.0, length), 0.0)
    return TrainingSequence(
        ids=tokens.pack_ids(rng.integers(0, VOCABULARY, length)),
        learned=learned.tobytes(),
        logprobs=tokens.pack_floats(logprobs) if sampled else b"",
        advantage=advantage,
        group=group,
    )


def batch(seed: int, count: int = 12, *, sampled: bool = True, longest: int = 24) -> tuple[TrainingSequence, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        sequence(
            rng,
            int(rng.integers(2, longest)),
            sampled=sampled,
            group=index // 4,
            advantage=float(rng.normal()) if sampled else 1.0,
        )
        for index in range(count)
    )


def model_folder(folder: Path, **changes: Any) -> Path:
    """A model in Hugging Face format with the quickstart's tokenizer (of which it knows only the first tokens)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, 128)
    small_model(**changes).save_pretrained(folder)
    return folder


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(made: Trainer, kind, sequences, figures: dict[str, float] | None = None) -> dict[str, torch.Tensor]:
    """The whole step's gradient, caught before the optimiser applies it; its figures go into `figures`."""
    caught: dict[str, torch.Tensor] = {}
    optimiser = made.optimiser
    assert optimiser is not None
    apply = optimiser.step

    def catch(share: float) -> None:
        names = [name for name, _ in made.model.named_parameters()]
        masters = zip(names, made.masters.parameters, strict=True)
        caught.update({name: p.grad.clone() for name, p in masters if p.grad is not None})
        apply(share)

    optimiser.step = catch  # type: ignore[method-assign]
    metrics = made.step(kind, sequences)
    if figures is not None:
        figures.update(metrics)
    return caught
