"""What an optimiser works on: the model's own weights in float32, or float32 copies of weights in bfloat16.

bfloat16 has 8 significant bits: an update smaller than about 1/256 of a weight is rounded away, and so is what a micro
batch adds to a gradient that is already large.

Invariants:
- gradients are summed, clipped and applied in float32 (float64 for a float64 model);
- between steps each weight of the model is its master, rounded; nobody else writes to the model's weights;
- masters live as long as the model is trained: the next stage goes on from them, not from their rounding.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.learning.sharding import like

EXACT = (torch.float32, torch.float64)


class MasterWeights:
    """The masters of a model's trainable parameters, in the model's order; a tied tensor has one."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """The model's own: forward and backward passes see these."""
        self.parameters = [
            weight if weight.dtype in EXACT else nn.Parameter(weight.detach().float()) for weight in self.weights
        ]
        """What the optimiser moves. The very same tensors where the model's are precise enough."""
        named = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.names = {id(master): name for master, name in zip(self.parameters, named, strict=True)}
        """The model's names for the masters, by their identity."""

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Masters of the matrices between embeddings and head."""
        outer = {
            id(parameter)
            for module in (self.model.get_input_embeddings(), self.model.get_output_embeddings())
            if module is not None
            for parameter in module.parameters()
        }
        pairs = zip(self.weights, self.parameters, strict=True)
        return [master for weight, master in pairs if weight.ndim == 2 and id(weight) not in outer]

    def collect(self) -> None:
        """Add what a backward pass has left at the model's weights to the masters' gradients."""
        for weight, master in self._copied():
            if weight.grad is not None:
                gradient = weight.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def set_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Give each master its gradient."""
        for master, gradient in zip(self.parameters, gradients, strict=True):
            master.grad = gradient

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for weight, master in zip(self.weights, self.parameters, strict=True):
            weight.grad = master.grad = None

    @torch.no_grad()
    def restore(self, values: dict[str, Tensor]) -> None:
        """Set all masters, by their names, and the model's weights with them."""
        for master in self.parameters:
            master.copy_(like(values[self.names[id(master)]], master))
        self.write_back()

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model."""
        for weight, master in self._copied():
            weight.copy_(master)

    def _copied(self) -> Iterable[tuple[nn.Parameter, nn.Parameter]]:
        return ((w, m) for w, m in zip(self.weights, self.parameters, strict=True) if w is not m)
