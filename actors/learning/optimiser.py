"""AdamW, with Muon for the matrices between embeddings and head where a recipe asks for it, and their schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from policies.options import OptimiserOptions


def rate_share(step: int, options: OptimiserOptions, total_steps: int) -> float:
    """The share of the full learning rate, 0 to 1, at optimiser step `step` (from 0) of a stage.

    Linear from `1 / warmup_steps` of the full rate to all of it at the warm-up's last step; then constant, or along a
    half cosine that would reach zero one step after the stage's last.
    """
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    progress = (step - options.warmup_steps) / max(1, total_steps - options.warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


class StageOptimiser:
    """What moves a model's weights during one stage: one optimiser, or two that share the parameters between them.

    Weight decay is for matrices only, not for norms and biases.

    Example::

        optimiser = StageOptimiser(model, OptimiserOptions(learning_rate=1e-6))
        loss.backward()
        optimiser.step(rate_share(step, options, total_steps))
        optimiser.zero_grad()
    """

    def __init__(self, model: PreTrainedModel, options: OptimiserOptions) -> None:
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        muon = options.muon
        hidden = _hidden_matrices(model) if muon is not None else []
        taken = {id(parameter) for parameter in hidden}
        rest = [parameter for parameter in trainable if id(parameter) not in taken]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [
                    {"params": [p for p in rest if p.ndim >= 2], "weight_decay": options.weight_decay},
                    {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
                ],
                lr=options.learning_rate,
                betas=options.betas,
                foreach=True,
            )
        ]
        if muon is not None:
            self._parts.append(
                torch.optim.Muon(
                    hidden,
                    lr=muon.learning_rate,
                    momentum=muon.momentum,
                    weight_decay=options.weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        self._full_rates = [part.defaults["lr"] for part in self._parts]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        return [group for part in self._parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self, share: float) -> None:
        """Apply the gradients, at `share` of each part's full learning rate."""
        for part, rate in zip(self._parts, self._full_rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * share
            part.step()


def _hidden_matrices(model: PreTrainedModel) -> list[nn.Parameter]:
    """The trainable matrices but for embeddings and head, whose rows are looked up one by one: Muon is not for them."""
    outer = {
        id(parameter)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        if module is not None
        for parameter in module.parameters()
    }
    return [p for p in model.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in outer]
