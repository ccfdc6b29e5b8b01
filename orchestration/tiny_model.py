"""The quickstart's model: a tiny Llama from scratch with a tokenizer of its own, in Hugging Face format.

The tokenizer has one token per character, so that any text (a traceback, say) can be encoded and decoded without
loss, and one token for each word of the problems, piece of the dialogue's scaffold and common piece of Python's
error messages, so that dialogues are short. Numbers are cut into pairs of digits from the left: copying them, which is
all that the model has to learn of numbers, is then learned several times sooner than with single digits.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from orchestration.recipe import ModelSettings
from policies.arithmetic import FAMILIES
from policies.demonstrations import ANSWER, MENDS, NO_TOOLS, PLANS, READS, call_text

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
PADDING = "<|pad|>"
UNKNOWN = "<|unk|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if not loop.first %}{{ '\\n' }}{% endif -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>' }}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif -%}"
)

_SCAFFOLD = (
    f"{START_OF_TURN}user\n",
    f"\n{START_OF_TURN}assistant\n<reason>",
    f"\n{START_OF_TURN}user\n<tool_response>\n",
    "\n</tool_response>",
    "ok\nstdout:\n",
    "error\nstderr:\n",
    "invalid_call\n",
    "timeout\n",
    "print(",
    "show(",
    " * ",
    " + ",
    " - ",
    " % ",
    " // ",
    " ** ",
    "Traceback (most recent call last):\n",
    "  File ",
    ", line 1",
    ", in <module>\n",
    "SyntaxError: ",
    "NameError: ",
    "was never closed",
    " is not defined",
)


def _pieces() -> list[str]:
    """All tokens longer than a character, the longest first."""
    calls = call_text("~").split("~")
    said = [text for template in (*PLANS, *MENDS, *READS, NO_TOOLS, ANSWER) for text in _fixed_parts(template)]
    words = [
        word
        for family in FAMILIES
        for text in _fixed_parts(family.wording)
        for word in re.findall(r" ?[A-Za-z]+", text)
    ]
    pieces = {*_SCAFFOLD, *calls, *said, *words}
    return sorted((piece for piece in pieces if len(piece) > 1), key=lambda piece: (-len(piece), piece))


def _fixed_parts(template: str) -> list[str]:
    """The text of a format string, without its fields."""
    return [text for text, *_ in string.Formatter().parse(template) if text]


def write_tokenizer(folder: Path, max_tokens: int) -> PreTrainedTokenizerFast:
    """Write the tokenizer and its chat template into `folder`, and return it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    special = [PADDING, UNKNOWN, START_OF_TURN, END_OF_TURN]
    pairs = [f"{pair:02}" for pair in range(100)]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(string.printable), *pairs])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d\d|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in _pieces()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_scratch_model(model: ModelSettings, seed: int, folder: Path) -> Path:
    """Write tokenizer and seeded weights of the model that `model.scratch` describes; returns `folder`."""
    from transformers.utils.logging import disable_progress_bar

    from actors.learning.model import ModelSpec, build_model

    scratch = model.scratch
    assert scratch is not None, "a recipe with a model on disk builds none"
    tokenizer = write_tokenizer(folder, scratch.max_tokens)
    spec = ModelSpec(
        hidden_size=scratch.hidden,
        layers=scratch.layers,
        heads=scratch.heads,
        kv_heads=scratch.kv_heads,
        intermediate_size=scratch.intermediate,
        max_positions=scratch.max_tokens,
        initializer_range=scratch.initializer_range,
        dtype=model.dtype,
    )
    end, padding = tokenizer.convert_tokens_to_ids(END_OF_TURN), tokenizer.convert_tokens_to_ids(PADDING)
    assert isinstance(end, int) and isinstance(padding, int), "one token has one id"
    built = build_model(spec, vocabulary=len(tokenizer), seed=seed, eos_id=end, pad_id=padding)
    disable_progress_bar()
    built.save_pretrained(folder)
    return folder
