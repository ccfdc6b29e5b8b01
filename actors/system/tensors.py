"""Tensors on their way through an object store, without copies on the reading side.

`freeze` replaces each torch tensor in a value by its bytes as a NumPy array, which pickle 5 hands over out of band;
`thaw` makes tensors of them again, which look into the store's shared memory.

Invariant: what `thaw` returns is read-only by agreement. Writing into it would change the stored value for all readers.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class FrozenTensor:
    """A tensor as bytes."""

    dtype: str
    """Name of the torch dtype, such as `bfloat16`."""
    shape: tuple[int, ...]
    data: np.ndarray
    """uint8, flat."""


def freeze(value: Any) -> Any:
    """`value` with its tensors (in dicts, lists and tuples, nested) frozen; tensors on a GPU are copied to the CPU."""
    torch = sys.modules.get("torch")
    if torch is None:  # then there is no tensor in it
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        name = str(value.dtype).removeprefix("torch.")
        return FrozenTensor(name, tuple(value.shape), flat.view(torch.uint8).numpy())
    return _inside(value, freeze)


def thaw(value: Any) -> Any:
    """The inverse of `freeze`."""
    if isinstance(value, FrozenTensor):
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not writable": see the module's invariant
            flat = torch.from_numpy(value.data)
        return flat.view(getattr(torch, value.dtype)).reshape(value.shape)
    return _inside(value, thaw)


def _inside(value: Any, change: Any) -> Any:
    if type(value) is dict:
        return {key: change(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(item) for item in value)
    return value
