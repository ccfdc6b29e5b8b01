"""One model sharded over several learner processes (FSDP2), each of which runs its share of a step's rows.

Invariants:
- every rank is given the whole step and deals its rows out alike, so denominators are those of the whole step;
- ranks make equally many passes, since each pass is a sequence of collectives: a rank that has run out of rows runs one
  without learned tokens;
- gradients are summed over ranks in float32 and never averaged: token weights hold the one denominator there is;
- weights, gradients and moments are sharded in float32 and serve as the masters; a bfloat16 model is cast where its
  layers are gathered.

gloo carries it on CPUs, NCCL on GPUs. THE LATTER IS UNTESTED: no test of this project has had two GPUs.

Sources: FSDP2 (`torch.distributed.fsdp.fully_shard`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from actors.learning.logprobs import TokenScores
from actors.learning.model import Dtype, named_weights, score_row
from policies.packing import PackedRow, idle_row

COLLECTIVE_SECONDS = 600.0
"""A rank that waits longer for the others takes them for lost. (A rank that dies is noticed at once.)"""
DeviceType = Literal["cpu", "cuda"]
BACKENDS: dict[DeviceType, str] = {"cpu": "gloo", "cuda": "nccl"}


class Rendezvous:
    """Where the ranks of a group find each other; held by rank 0 for as long as the group lives.

    Args:
        host: address of this process that all ranks can reach; it listens nowhere else.
    """

    def __init__(self, host: str, count: int) -> None:
        listener = socket.create_server((host, 0))
        self.port: int = listener.getsockname()[1]
        self.store = TCPStore(
            host,
            self.port,
            count,
            is_master=True,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # the store closes it
        )


def join(host: str, port: int, count: int) -> TCPStore:
    """Find the `Rendezvous` at `host` and `port`."""
    return TCPStore(
        host, port, count, is_master=False, timeout=timedelta(seconds=COLLECTIVE_SECONDS), wait_for_workers=False
    )


class _PackedScorer(nn.Module):
    """`score_row` as a module: what is outside of the layers (embeddings, head) is gathered for as long as it runs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, row: PackedRow, temperature: float) -> TokenScores:
        return score_row(self.model, row, temperature)


class LearnerGroup:
    """This process's membership in a group of `count` learners, and its shard of the model.

    Joining waits for all ranks. A process belongs to one group at most.

    Example::

        rendezvous = Rendezvous("127.0.0.1", 2)  # on rank 0; the other calls join("127.0.0.1", port, 2)
        group = LearnerGroup(rendezvous.store, rank=0, count=2, model=model)
        trainer = Trainer(model, group=group)
    """

    def __init__(self, store: Store, rank: int, count: int, model: PreTrainedModel) -> None:
        """`model`: whole, the same on all ranks; it is sharded in place."""
        self.rank, self.count = rank, count
        device: DeviceType = "cuda" if model.device.type == "cuda" else "cpu"
        dist.init_process_group(
            BACKENDS[device],
            store=store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
        policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
        model.float()
        mesh = init_device_mesh(device, (count,))
        self._scorer = _PackedScorer(model)
        for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self._scorer, mesh=mesh, mp_policy=policy)
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def leave(self) -> None:
        """End the membership; whatever the other ranks are waiting for fails."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def share(self, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """This rank's rows, as many as every other's; ranks run rows of similar length at the same time."""
        ordered = sorted(rows, key=lambda row: -len(row.ids))
        mine = ordered[self.rank :: self.count]
        passes = -(-len(ordered) // self.count)
        return mine + [idle_row()] * (passes - len(mine))

    def score(self, row: PackedRow, temperature: float) -> TokenScores:
        """`score_row` on the sharded model; every rank has to call it at the same time."""
        return self._scorer(row, temperature)

    def gather[T](self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks."""
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values


def whole_weights(model: PreTrainedModel, dtype: Dtype) -> Iterator[tuple[str, Tensor]]:
    """`named_weights`, put together from all shards one by one and cast to `dtype`; every rank has to go through them.

    Buffers keep their type. Of a model that is not sharded, its own tensors.
    """
    for name, tensor in named_weights(model).items():
        if isinstance(tensor, DTensor):
            yield name, tensor.full_tensor().to(getattr(torch, dtype))
        else:
            yield name, tensor


def like(value: Tensor, pattern: Tensor) -> Tensor:
    """This rank's part of a whole tensor that every rank has, if `pattern` is sharded; else the tensor itself."""
    if not isinstance(pattern, DTensor) or value.shape != pattern.shape:
        return value
    return distribute_tensor(value.to(pattern.device), pattern.device_mesh, pattern.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """A tensor put together from its shards, or the tensor itself; every rank has to ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else value
