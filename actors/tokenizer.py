"""A model's tokenizer and chat template, as the `ChatFormat` that dialogues use."""

from __future__ import annotations

from policies.chat_format import ChatFormat
from policies.options import Options


class PromptOptions(Options):
    """How problems are put to the model."""

    instructions: bool = True
    """Whether the system and question prompts are used; small models trained from scratch get the bare question."""
    opening: str = "<reason>"
    """Put after the generation prompt; the model continues from it."""


def load_chat_format(model: str, options: PromptOptions) -> ChatFormat:
    """The chat format of the model in folder `model`.

    Raises `ValueError` if the tokenizer has no chat template or no end-of-sequence token.
    """
    # Not AutoTokenizer: it imports torch, which actors that only tokenise do without.
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    if tokenizer.chat_template is None:
        raise ValueError(f"the tokenizer in {model} has no chat template; add a chat_template.jinja to that folder")
    if tokenizer.eos_token is None:
        raise ValueError(
            f"the tokenizer in {model} has no end-of-sequence token; set eos_token in tokenizer_config.json"
        )
    return ChatFormat(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False, verbose=False),
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        render=lambda messages, tools, generate: tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=generate, tokenize=False
        ),
        end_of_turn=tokenizer.eos_token,
        instructions=options.instructions,
        opening=options.opening,
    )
