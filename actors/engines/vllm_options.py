"""How vLLM is set up, and what its KV cache takes. Free of vLLM: recipes hold these options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from policies.options import Options

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""Of a number, by dtype."""


class VllmOptions(Options):
    """How vLLM is set up. Defaults suit a small model on a CPU."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_sequence_tokens: Annotated[int, Field(ge=2)] = 4096
    max_running: Annotated[int, Field(ge=1)] = 64
    """Sequences that may decode at once (`max_num_seqs`)."""
    max_step_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens of one engine step, prefill chunks included (`max_num_batched_tokens`). On CPU at least `kv_tokens`: vLLM
    can't chunk the prompt of a seeded request there."""
    kv_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of KV cache; None lets vLLM take what memory allows. Small values make scheduling matter."""
    block_tokens: Annotated[int, Field(ge=1)] = 32
    """Tokens per KV block. vLLM's CPU attention wants multiples of 32."""
    prefix_caching: bool = True
    least_step_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Least time from one step to the next while less than half of `max_running` sequences run.

    An engine that shares its cores with sandboxes would otherwise burn them on steps of a few sequences each, and so
    keep back the very tool results that would make its batches larger. 0 where generators have cores of their own.
    """

    @property
    def kv_blocks(self) -> int | None:
        """Blocks that hold `kv_tokens`, the last of them perhaps in part; None where that is left to vLLM."""
        return None if self.kv_tokens is None else -(-self.kv_tokens // self.block_tokens)


def head_size(config: Any) -> int:
    """Of a transformers config: some kinds have no `head_dim`, in others it may be None."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_values_per_token(config: Any) -> int:
    """Keys and values of all layers that a token of a model with this transformers config keeps in the cache."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_size(config)
