"""AdamW and its learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from policies.options import OptimiserOptions


def learning_rate(step: int, options: OptimiserOptions, total_steps: int) -> float:
    """The rate of optimiser step `step` (from 0) of a stage.

    Linear from `1 / warmup_steps` of the full rate to all of it at the warm-up's last step; then constant, or along a
    half cosine that would reach zero one step after the stage's last.
    """
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return options.learning_rate
    progress = (step - options.warmup_steps) / max(1, total_steps - options.warmup_steps)
    return options.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def build_optimiser(model: nn.Module, options: OptimiserOptions) -> torch.optim.AdamW:
    """AdamW over all trainable parameters; weight decay on matrices only, not on norms and biases.

    The learning rate is set before each step by the caller.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": options.weight_decay},
            {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=options.betas,
        foreach=True,
    )
