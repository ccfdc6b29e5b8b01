"""What is said where a learner has too little memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from actors.system.actor import CannotGoOn
from policies.options import OptimiserOptions

_ALLOCATOR = "DefaultCPUAllocator: "


class OutOfMemory(CannotGoOn):
    """What was to be done needs more memory than there is."""


@contextmanager
def in_memory(name: str, optimiser: OptimiserOptions | None, threads: int) -> Iterator[None]:
    """For work that may need more memory than there is: raises `OutOfMemory` then, which says what would need less.

    Args:
        name: of the learner.
        optimiser: the options of its stage, None if it has none yet.
        threads: that work on a micro batch each.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        words = said.partition(_ALLOCATOR)[2] or said
        raise OutOfMemory(f"{name} has run out of memory ({words}); {_advice(optimiser, threads)}") from error


def _is_out_of_memory(error: BaseException) -> bool:
    """On the host or on a GPU. torch's allocator for CPUs raises a plain `RuntimeError` (c10/core/impl/alloc_cpu.cpp),
    which only its text tells from others.
    """
    return f"{_ALLOCATOR}can't allocate" in str(error) or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _advice(optimiser: OptimiserOptions | None, threads: int) -> str:
    if optimiser is None:
        return "give it more, or train a smaller model"
    advice = [f"lower stages.*.optimiser.micro_batch_tokens (it is {optimiser.micro_batch_tokens})"]
    if threads > 1:
        advice.append(f"lower learner.threads (it is {threads}: each may work on a micro batch of its own)")
    if not optimiser.activation_checkpointing:
        advice.append("set stages.*.optimiser.activation_checkpointing")
    return ", ".join([*advice, "or give it more memory"])
