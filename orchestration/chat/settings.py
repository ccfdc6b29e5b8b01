"""What a chat needs of a model, a run's recipe and this machine; everything is checked before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.engines.vllm_options import VllmOptions
from actors.tokenizer import PromptOptions
from env.preflight import check_host
from env.tool_call import JUPYTER_TOOL, Limits, ToolName
from orchestration.as_trained import as_trained
from orchestration.preflight import HostUnfit, longest_sequence, model_shape, usable_chat_format
from orchestration.recipe import ModelSettings, RecipeError
from policies.chat_format import ChatFormat
from policies.dialogue import DialogueLimits

MOST_CONTEXT = 8192
"""Tokens of context, if the model takes more and `--context` asks for no other number: the KV cache takes memory."""
BLOCK_TOKENS = 32
PROMPT = PromptOptions(instructions=False, opening="")
"""How a model is talked to that no run of ours has trained."""
LIMITS = DialogueLimits(call=Limits(wall_seconds=30.0), tool_response_characters=2000, tools=(JUPYTER_TOOL,))


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the user has asked for; None: as the model's run has it, or the defaults."""

    model: Path
    context: int | None = None
    max_tokens: int = 1024
    """Of one model turn."""
    max_turns: int = 10
    temperature: float = 0.6
    seed: int = 0
    use_tools: bool = True
    tools: tuple[ToolName, ...] | None = None
    instructions: bool | None = None
    opening: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSettings:
    """A chat that can begin."""

    model: Path
    chat: ChatFormat
    limits: DialogueLimits
    engine: VllmOptions
    temperature: float
    seed: int
    recipe: Path | None
    """The recipe that prompt, tools and limits of calls are from."""


def settle(asked: Asked) -> ChatSettings:
    """Settle what is open, and check the rest.

    Raises `RecipeError` if there is no usable model or an option is not usable, `TemplateUnusable` for a chat template
    that can't continue a conversation, `HostUnfit` if this machine can't isolate code.
    """
    if not asked.model.is_dir():
        raise RecipeError(f"there is no folder {asked.model}; give --model a folder in Hugging Face format")
    model_shape(ModelSettings(path=asked.model))
    longest = longest_sequence(asked.model)
    context = asked.context or min(longest, MOST_CONTEXT)
    if context > longest:
        raise RecipeError(f"--context {context} is more than {asked.model} takes; give at most {longest}")
    trained = as_trained(asked.model)
    prompt, limits, recipe = trained or (PROMPT, LIMITS, None)
    changes: dict[str, Any] = {"max_tokens": context, "max_turns": asked.max_turns, "max_turn_tokens": asked.max_tokens}
    if asked.tools is not None:
        changes["tools"] = asked.tools
    if not asked.use_tools:
        changes["tools"] = ()
    own = {"instructions": asked.instructions, "opening": asked.opening}
    prompt = prompt.model_copy(update={key: value for key, value in own.items() if value is not None})
    limits = limits.model_copy(update=changes)
    if limits.tools:
        _check_sandbox()
    return ChatSettings(
        model=asked.model,
        chat=usable_chat_format(asked.model, prompt),
        limits=limits,
        engine=_engine(asked.model, context),
        temperature=asked.temperature,
        seed=asked.seed,
        recipe=recipe,
    )


def _check_sandbox() -> None:
    faults: Sequence[str] = [str(problem) for problem in check_host()]
    if faults:
        raise HostUnfit("this machine can't run the model's code; --no-tools chats without:\n  " + "\n  ".join(faults))


def _engine(model: Path, context: int) -> VllmOptions:
    """An engine for one conversation. On a CPU the KV cache is bounded: vLLM would take most of the memory."""
    import torch

    config = json.loads((model / "config.json").read_text())
    stored = config.get("dtype") or config.get("torch_dtype")
    dtype = "float32" if stored == "float32" else "bfloat16"
    options = VllmOptions(dtype=dtype, max_sequence_tokens=context, max_running=1, block_tokens=BLOCK_TOKENS)
    if torch.cuda.is_available():
        return options
    return options.model_copy(update={"kv_tokens": -(-context // BLOCK_TOKENS) * BLOCK_TOKENS})
