"""Tensors come out of the store as they went in, without a copy."""

from __future__ import annotations

import pickle

import pytest
import torch

from actors.system.tensors import FrozenTensor, freeze, thaw


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 0, 4)])
def test_every_kind_of_tensor_comes_back_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    back = thaw(pickle.loads(pickle.dumps(freeze(tensor))))
    assert back.dtype == dtype and back.shape == shape
    assert torch.equal(back, tensor)


def test_tensors_are_found_in_nested_values_and_the_rest_is_left_alone() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    value = {"weights": [weight, ("text", 1)], "raw": b"bytes", 3: None}
    frozen = freeze(value)
    assert isinstance(frozen["weights"][0], FrozenTensor)
    back = thaw(frozen)
    assert torch.equal(back["weights"][0], weight.detach())
    assert not back["weights"][0].requires_grad
    assert (back["weights"][1], back["raw"], back[3]) == (("text", 1), b"bytes", None)


def test_thawing_copies_nothing() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(freeze(torch.arange(1000)), protocol=5, buffer_callback=buffers.append)
    store = bytearray(buffers[0].raw())
    back = thaw(pickle.loads(data, buffers=[store]))
    store[:8] = (77).to_bytes(8, "little")
    assert back[0] == 77
    assert len(data) < 500
