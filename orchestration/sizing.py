"""`greenroom train --dry-run` for hardware that a recipe states and this machine need not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from actors.engines.vllm_options import ITEM_BYTES, head_size
from orchestration.preflight import model_shape
from orchestration.recipe import Recipe, RecipeError
from policies.hardware import GIB, GPUS, Demand, ModelSize, Sizing, size
from policies.stages import ReinforcementOptions

FORMULA = (
    "tokens/s = generators x batch / max((weights + batch x length x KV bytes per token) / bandwidth, "
    "2 x parameters x batch / FLOP/s), with length = half of the longest sequence"
)


def size_stages(recipe: Recipe) -> dict[str, Sizing]:
    """The sizing of each stage of reinforcement. Raises `RecipeError` if the recipe states no hardware or no GPUs."""
    if recipe.hardware is None or recipe.generators.gpus == 0 or recipe.learner.gpus == 0:
        raise RecipeError("sizing needs [hardware], generators.gpus and learner.gpus")
    model = model_size(recipe)
    engine = recipe.generators.engine
    return {
        name: size(
            model,
            Demand(
                generators=recipe.generators.count,
                gpus_each=recipe.generators.gpus,
                engine_bytes=ITEM_BYTES[engine.dtype],
                kv_tokens=engine.kv_tokens,
                max_running=engine.max_running,
                longest=stage.limits.max_tokens,
                learner_gpus=recipe.learner.gpus,
                learner_dtype=recipe.model.dtype,
                micro_batch_tokens=stage.optimiser.micro_batch_tokens,
                checkpointing=stage.optimiser.activation_checkpointing,
            ),
            recipe.hardware,
        )
        for name, stage in recipe.stages.items()
        if isinstance(stage, ReinforcementOptions)
    }


def model_size(recipe: Recipe) -> ModelSize:
    """The model's dimensions: as the recipe states them, else from the model's own config."""
    if recipe.model.size is not None:
        return recipe.model.size
    from transformers import AutoConfig

    shape = model_shape(recipe.model)  # refuses a model that is not there
    if recipe.model.path is None:
        raise RecipeError(
            "hardware is given, but the model is made from scratch; give model.size, or leave hardware out"
        )
    config = AutoConfig.from_pretrained(recipe.model.path)
    return ModelSize(
        parameters=shape.parameters,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        kv_heads=config.num_key_value_heads,
        head_size=head_size(config),
    )


def as_dict(recipe: Recipe, sizings: dict[str, Sizing]) -> dict[str, Any]:
    """For `--json`."""
    assert recipe.hardware is not None, "sized recipes state their hardware"
    return {
        "recipe": recipe.name,
        "hardware": recipe.hardware.model_dump() | GPUS[recipe.hardware.gpu]._asdict(),
        "model": model_size(recipe).model_dump(),
        "throughput": {"kind": "roofline, uncalibrated", "formula": FORMULA},
        "stages": {name: sizing._asdict() for name, sizing in sizings.items()},
    }


def show(recipe: Recipe, sizings: dict[str, Sizing], out: Console) -> None:
    """For people."""
    assert recipe.hardware is not None, "sized recipes state their hardware"
    hardware, model = recipe.hardware, model_size(recipe)
    gpu = GPUS[hardware.gpu]
    table = Table(title=f"{recipe.name} on {hardware.gpus} x {hardware.gpu}, per GPU")
    table.add_column("")
    for name in sizings:
        table.add_column(name, justify="right")
    told: dict[str, Callable[[Sizing], str]] = {
        "engine weights": lambda each: f"{each.engine_weights / GIB:.1f} GiB",
        "learner": lambda each: f"{each.learner_state / GIB:.1f} GiB",
        "activations": lambda each: f"{each.activations / GIB:.1f} GiB",
        "KV tokens": lambda each: f"{each.kv_capacity:,}",
        "batch": lambda each: str(each.batch),
        "tokens/s, all GPUs": lambda each: f"{each.tokens_per_second:,.0f}",
        "bound by": lambda each: each.bound_by,
    }
    for title, figure in told.items():
        table.add_row(title, *map(figure, sizings.values()))
    out.print(table)
    out.print("throughput: roofline, uncalibrated")
    out.print(f"  {FORMULA}")
    first = next(iter(sizings.values()))
    out.print(
        f"  inputs: {model.parameters / 1e9:.2f} billion parameters, {first.kv_bytes_per_token / 1024:.0f} KiB of KV "
        f"per token; {gpu.memory_bytes / 1e9:.0f} GB, {gpu.bandwidth / 1e12:g} TB/s, {gpu.flops / 1e12:g} TFLOP/s a GPU"
    )
    if first.shared:
        out.print("generators and learner take turns on the same GPUs: the learner's state stays there")
    faults = {fault for each in sizings.values() for fault in each.faults}
    for fault in sorted(faults):
        out.print(f"[bold red]would not fit:[/] {fault}", soft_wrap=True)
    if not faults:
        out.print("everything would fit")
