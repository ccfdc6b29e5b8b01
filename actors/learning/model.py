"""Models: built from scratch or loaded from a folder, and run on packed rows.

Invariants:
- every model that comes out of here uses packed attention, has its dropout off, and has shown on a probe that its
  packed log-probabilities are those of the library's own attention and head;
- nothing is fetched: a model is a folder in Hugging Face format or a `ModelSpec`;
- building touches no global random state: same spec and seed, same weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from actors.learning.attention import ATTENTION, plan_blocks
from actors.learning.logprobs import TokenScores, score_tokens
from policies.packing import PackedRow

Dtype = Literal["float32", "bfloat16"]


class ModelSpec(BaseModel):
    """A Llama to build from scratch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: Annotated[int, Field(ge=2)] = 128
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    kv_heads: Annotated[int, Field(ge=1)] = 4
    """Heads of keys and values; fewer than `heads` is grouped-query attention."""
    intermediate_size: Annotated[int, Field(ge=1)] = 384
    max_positions: Annotated[int, Field(ge=1)] = 1024
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    tie_embeddings: bool = True
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of initial weights; narrow models learn sooner from larger ones."""
    dtype: Dtype = "float32"

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSpec:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        return self


def build_model(
    spec: ModelSpec,
    *,
    vocabulary: int,
    seed: int,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
) -> PreTrainedModel:
    """A new model with seeded weights for a tokenizer of `vocabulary` tokens, on the CPU."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        intermediate_size=spec.intermediate_size,
        max_position_embeddings=spec.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        tie_word_embeddings=spec.tie_embeddings,
        initializer_range=spec.initializer_range,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    return _checked(model.to(getattr(torch, spec.dtype)), "a model built from scratch")


def load_model(folder: str | Path, dtype: Dtype) -> PreTrainedModel:
    """A causal language model from a folder in Hugging Face format, on the CPU.

    Raises `ValueError` if the folder holds no model, or one that packed rows can't serve.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no config.json; give a folder with a model in Hugging Face format")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation=ATTENTION, local_files_only=True
    )
    return _checked(model, str(folder))


def score_row(
    model: PreTrainedModel, row: PackedRow, temperature: float = 1.0, chunk_logits: int | None = None
) -> TokenScores:
    """Log-probabilities (with gradient) and entropies of a row's learned tokens, `[n]` each, in the row's order."""
    device = model.device
    hidden = model.base_model(
        input_ids=torch.from_numpy(row.ids)[None].to(device),
        position_ids=torch.from_numpy(row.positions)[None].to(device),
        use_cache=False,
        packed=plan_blocks(row.boundaries, device),
    ).last_hidden_state[0]
    head = model.get_output_embeddings()
    assert head is not None, "`_checked` refuses models without an output projection"
    bias = getattr(head, "bias", None)
    predictors = torch.from_numpy(row.predictors).to(device)
    targets = torch.from_numpy(row.targets).to(device)
    limit = {} if chunk_logits is None else {"chunk_logits": chunk_logits}
    return score_tokens(hidden.index_select(0, predictors), head.weight, bias, targets, temperature, **limit)


def checkpoint_activations(model: PreTrainedModel, on: bool) -> None:
    """Whether layers keep only what enters them, and compute the rest again in the backward pass.

    Raises `ValueError` if the model's layers can't.
    """
    if not on:
        model.gradient_checkpointing_disable()
    elif not model.supports_gradient_checkpointing:
        raise ValueError(
            f"{type(model).__name__} has no layers that can be computed again; set activation_checkpointing = false"
        )
    else:
        # Nothing random is computed, so there is no random state to keep.
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = on  # the library asks the layer itself; its parts, dropout among them, stay as they are


def named_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """A checkpoint's parameters and buffers by name; a tied tensor once, under its first name. Not copies."""
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor.detach()
    return weights


def _checked(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """`model` with its dropout off (ratios compare like with like), if packed log-probabilities are the library's."""
    model.eval()
    head = model.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None:
        raise ValueError(f"{name} has no linear output projection; packed learning needs one")
    vocabulary = model.config.get_text_config().vocab_size
    lengths = (5, 3)
    ids = np.arange(sum(lengths), dtype=np.int64) * 7 % vocabulary
    learned = np.array([1, 2, 3, 4, 6, 7])
    row = PackedRow(
        sequences=np.arange(2),
        boundaries=np.array([0, 5, 8]),
        ids=ids,
        positions=np.concatenate([np.arange(length) for length in lengths]),
        predictors=learned - 1,
        targets=ids[learned],
        owners=np.array([0, 0, 0, 0, 1, 1]),
        logprobs=np.zeros(6, np.float32),
    )
    with torch.no_grad():
        packed = score_row(model, row).logprobs.cpu()
        model.set_attn_implementation("sdpa")
        expected = torch.cat([_own_logprobs(model, part) for part in np.split(ids, [lengths[0]])])
        model.set_attn_implementation(ATTENTION)
    difference = float((packed - expected).abs().max())
    allowed = 1e-3 if model.dtype == torch.float32 else 0.1
    if not difference <= allowed:
        raise ValueError(
            f"{name}: log-probabilities of packed rows are off by {difference:.3g} (allowed {allowed}); this "
            "architecture does more in its attention or after its output projection than packed rows support"
        )
    return model


def _own_logprobs(model: PreTrainedModel, ids: np.ndarray) -> Tensor:
    """By the library alone: `[len(ids) - 1]`."""
    row = torch.from_numpy(ids)[None].to(model.device)
    logits = model(input_ids=row, use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0].cpu()
