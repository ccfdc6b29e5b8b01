"""What a run would need of given GPUs, and how fast they could be at most: arithmetic on data sheets, no measurement.

Throughput is a *roofline*: a decoding step reads all weights and the batch's KV cache once and multiplies each token
with each weight once; it takes at least the longer of both at the data sheet's rates. Real engines stay below it, by a
factor that only a calibration tells.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from policies.options import Options

GIB = 1 << 30
GpuName = Literal["A100-80GB", "H100-80GB", "H200-141GB", "MI300X"]


class Gpu(NamedTuple):
    """From the vendor's data sheet."""

    memory_bytes: float
    bandwidth: float
    """Bytes per second."""
    flops: float
    """Dense bfloat16, per second."""


GPUS: dict[GpuName, Gpu] = {
    "A100-80GB": Gpu(80e9, 2.039e12, 312e12),
    "H100-80GB": Gpu(80e9, 3.35e12, 989e12),
    "H200-141GB": Gpu(141e9, 4.8e12, 989e12),
    "MI300X": Gpu(192e9, 5.3e12, 1307e12),
}
RESERVED_SHARE = 0.1
"""Of a GPU's memory: the driver, the library's workspace, fragmentation."""
LEARNER_BYTES = {"float32": 16, "bfloat16": 20}
"""Per parameter: weights, gradients and two moments; in bfloat16 everything again in float32."""


class HardwareOptions(Options):
    """The machines that a recipe is meant for; `--dry-run` sizes it for them."""

    gpu: GpuName
    gpus: Annotated[int, Field(ge=1)]


class ModelSize(Options):
    """A model's dimensions, for a dry run where the model itself is not at hand."""

    parameters: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1)]
    hidden: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_size: Annotated[int, Field(ge=1)]

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size


class Demand(NamedTuple):
    """What a recipe asks of the hardware."""

    generators: int
    gpus_each: float
    engine_bytes: int
    """Of one weight or KV value in the engine."""
    kv_tokens: int | None
    """Each generator's, as the recipe asks for; None: all that fits."""
    max_running: int
    longest: int
    """Tokens of the longest sequence."""
    learner_gpus: float
    learner_dtype: Literal["float32", "bfloat16"]
    micro_batch_tokens: int
    checkpointing: bool


class Sizing(NamedTuple):
    """Bytes are per GPU."""

    shared: bool
    """Whether generators and learner take turns on the same GPUs."""
    engine_weights: float
    learner_state: float
    activations: float
    kv_bytes_per_token: int
    kv_capacity: int
    """Tokens that fit beside the rest, per generator."""
    batch: int
    """Sequences of half the longest length that decode at once, per generator."""
    step_seconds: float
    tokens_per_second: float
    """Of all generators."""
    bound_by: Literal["memory bandwidth", "arithmetic"]
    faults: tuple[str, ...]
    """What would not fit."""


def size(model: ModelSize, demand: Demand, hardware: HardwareOptions) -> Sizing:
    """Size a recipe. Sequences are taken to be half as long as the longest, on average over their lives."""
    gpu = GPUS[hardware.gpu]
    generator_gpus = demand.generators * demand.gpus_each
    shared = generator_gpus + demand.learner_gpus > hardware.gpus
    usable = gpu.memory_bytes * (1 - RESERVED_SHARE)
    weights = model.parameters * demand.engine_bytes / demand.gpus_each
    state = LEARNER_BYTES[demand.learner_dtype] * model.parameters / demand.learner_gpus
    activations = activation_bytes(model, demand)
    kv_bytes = model.kv_values_per_token * demand.engine_bytes
    room = usable - weights - (state + activations if shared else 0.0)
    capacity = max(0, int(room * demand.gpus_each / kv_bytes))
    held = capacity if demand.kv_tokens is None else min(capacity, demand.kv_tokens)
    length = max(1, demand.longest // 2)
    batch = min(demand.max_running, held // length)
    memory_s = (weights * demand.gpus_each + batch * length * kv_bytes) / (gpu.bandwidth * demand.gpus_each)
    arithmetic_s = 2 * model.parameters * batch / (gpu.flops * demand.gpus_each)
    step = max(memory_s, arithmetic_s)
    faults = []
    if max(generator_gpus, demand.learner_gpus) > hardware.gpus:
        most = max(generator_gpus, demand.learner_gpus)
        faults.append(f"{most:g} GPUs are asked for at once, and there are {hardware.gpus}")
    if state + activations > usable:
        faults.append(
            f"the learner takes {(state + activations) / GIB:.1f} GiB per GPU, and {usable / GIB:.1f} GiB can be used; "
            "more learner.gpus share its state"
        )
    if capacity < demand.longest:
        faults.append(
            f"KV cache for {capacity} tokens fits beside the rest, fewer than one sequence of {demand.longest}; "
            "more GPUs per generator, or generators and learner on GPUs of their own"
        )
    if demand.kv_tokens is not None and demand.kv_tokens > capacity:
        faults.append(f"generators.engine.kv_tokens={demand.kv_tokens} does not fit; at most {capacity} do")
    return Sizing(
        shared=shared,
        engine_weights=weights,
        learner_state=state,
        activations=activations,
        kv_bytes_per_token=kv_bytes,
        kv_capacity=capacity,
        batch=batch,
        step_seconds=step,
        tokens_per_second=demand.generators * batch / step if batch else 0.0,
        bound_by="memory bandwidth" if memory_s >= arithmetic_s else "arithmetic",
        faults=tuple(faults),
    )


def activation_bytes(model: ModelSize, demand: Demand) -> float:
    """Of one micro batch in bfloat16: with checkpointing what enters each layer, and one layer's inside.

    The inside of a layer is taken as 34 bytes per token and hidden unit (Korthikanti et al. 2022, arXiv 2205.05198,
    eq. 1, without the attention scores, which packed attention does not keep).
    """
    width = demand.micro_batch_tokens * model.hidden
    inside = 34 * width
    return 2 * width * model.layers + inside if demand.checkpointing else inside * model.layers
