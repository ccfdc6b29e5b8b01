"""Checkpoints in Hugging Face format.

Invariant: `path` either does not exist or holds a whole checkpoint, on the disk, whatever interrupts the writing. It is
written to `path.partial`, synced, and renamed; leftovers of an interrupted attempt are removed by the next one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from actors.storage.disk import removed_on_failure, sync, writing

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates",
    "*.model",
    "*.tiktoken",
)
"""Patterns of what belongs to a model's tokenizer."""


def write_checkpoint(
    model: PreTrainedModel,
    path: str | Path,
    tokenizer_from: str | Path | None = None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write weights, config and generation config, with the tokenizer files of the folder `tokenizer_from`.

    `weights`: whole, where the model has only a shard of them (`sharding.whole_weights`).
    A checkpoint that is already at `path` is replaced; until the new one is whole, the old one stays.

    Raises `CannotWrite` where the file system does not take it.
    """
    path = Path(path)
    partial, replaced = path.with_name(path.name + ".partial"), path.with_name(path.name + ".replaced")
    _remove(partial)
    if replaced.exists():  # an earlier replacement was interrupted between its two renames, or just after them
        if path.exists():
            _remove(replaced)
        else:
            replaced.rename(path)
    with writing(path), removed_on_failure(partial):
        partial.mkdir(parents=True)
        model.save_pretrained(partial, state_dict=weights)
        if tokenizer_from is not None:
            copy_tokenizer(Path(tokenizer_from), partial)
        for file in partial.rglob("*"):
            sync(file)
        sync(partial)
        if path.exists():
            path.rename(replaced)  # a folder can't be renamed onto another
        partial.rename(path)
        sync(path.parent)
    _remove(replaced)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a model folder's tokenizer files to another folder."""
    for pattern in TOKENIZER_FILES:
        for file in sorted(source.glob(pattern)):
            if file.is_dir():
                shutil.copytree(file, target / file.name, dirs_exist_ok=True)
            else:
                shutil.copyfile(file, target / file.name)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
