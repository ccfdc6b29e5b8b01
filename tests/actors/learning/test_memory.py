"""What a user is told when a learner has too little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from actors.learning.memory import OutOfMemory, in_memory
from policies.options import OptimiserOptions

MORE_THAN_THERE_IS = 1 << 52
"""Bytes."""
TAKES = [
    lambda: torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8),
    lambda: bytearray(MORE_THAN_THERE_IS),
]


@pytest.mark.parametrize("take", TAKES, ids=["torch", "python"])
def test_who_has_run_out_is_named_with_what_would_need_less(take: Callable[[], Any]) -> None:
    with (
        pytest.raises(OutOfMemory, match=r"^learner has run out of memory \(.+\); lower .*micro_batch_tokens") as told,
        in_memory("learner", OptimiserOptions(learning_rate=1.0, micro_batch_tokens=4321), threads=2),
    ):
        take()
    text = str(told.value)
    assert "(it is 4321)" in text and "learner.threads (it is 2:" in text and "activation_checkpointing" in text


def test_what_would_not_help_is_not_said() -> None:
    options = OptimiserOptions(learning_rate=1.0, activation_checkpointing=True)
    for stage, left_out in ((options, ("threads", "activation_checkpointing")), (None, ("micro_batch_tokens",))):
        with pytest.raises(OutOfMemory) as told, in_memory("learner", stage, threads=1):
            bytearray(MORE_THAN_THERE_IS)
        assert not [word for word in left_out if word in str(told.value)]


def test_other_failures_pass_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), in_memory("learner", None, threads=1):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
