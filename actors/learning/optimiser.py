"""AdamW, with Muon for the matrices between embeddings and head where a recipe asks for it, and their schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from actors.learning.master_weights import MasterWeights
from actors.learning.sharding import like
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

    Weight decay is for matrices only, not for norms and biases. Moments are as precise as the masters.

    Example::

        masters = MasterWeights(model)
        optimiser = StageOptimiser(masters, OptimiserOptions(learning_rate=1e-6))
        loss.backward()
        masters.collect()
        optimiser.step(rate_share(step, options, total_steps))
        masters.zero_grad()
    """

    def __init__(self, masters: MasterWeights, options: OptimiserOptions) -> None:
        self._masters = masters
        muon = options.muon
        hidden = masters.hidden_matrices() if muon is not None else []
        taken = {id(parameter) for parameter in hidden}
        rest = [parameter for parameter in masters.parameters if id(parameter) not in taken]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [
                    {"params": [p for p in rest if p.ndim >= 2], "weight_decay": options.weight_decay},
                    {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
                ],
                lr=options.learning_rate,
                betas=options.betas,
                fused=True,  # one pass over weights and moments instead of nine
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

    def state(self) -> dict[str, Tensor]:
        """Moments and counts, by `PART/KEY/NAME` with the masters' names. Not copies."""
        names = self._masters.names
        return {
            f"{number}/{key}/{names[id(parameter)]}": value
            for number, part in enumerate(self._parts)
            for parameter, values in part.state.items()
            for key, value in values.items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` has given, in another process perhaps; the options have to be the same."""
        parameters = {self._masters.names[id(each)]: each for each in self._masters.parameters}
        for place, value in state.items():
            number, key, name = place.split("/", 2)
            self._parts[int(number)].state[parameters[name]][key] = like(value, parameters[name]).clone()

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        return [group for part in self._parts for group in part.param_groups]

    def step(self, share: float) -> None:
        """Apply the masters' gradients at `share` of each part's full rate, and bring the model up to date."""
        for part, rate in zip(self._parts, self._full_rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * share
            part.step()
        self._masters.write_back()
