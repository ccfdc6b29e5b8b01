"""Where an archive is, and which tokenizer its tokens are from."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from actors.storage.frames import ArchiveError
from orchestration.run_folder import RECIPE_FILE

type Decode = Callable[[Sequence[int]], str]
"""Token ids -> text, special tokens included."""


def find_archive(path: Path) -> Path:
    """The folder of segments: `path` itself, or the `archive/` of the run whose folder it is.

    Raises `ArchiveError` if there is neither.
    """
    for folder in (path / "archive", path):
        if any(folder.glob("segment-*.gra")):
            return folder
    raise ArchiveError(f"there is no archive at {path}; give a run's folder, or one that holds segment-*.gra files")


def find_tokenizer(archive: Path) -> Path | None:
    """The `tokenizer.json` of the run that an archive belongs to; None if the run's folder names none that exists.

    Raises `ArchiveError` for a recipe that is not TOML.
    """
    run = archive.parent
    candidates = [run / "model"]
    if (run / RECIPE_FILE).is_file():
        try:
            recipe = tomllib.loads((run / RECIPE_FILE).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors
            raise ArchiveError(f"{run / RECIPE_FILE} is not TOML: {error}; restore it, or give --model") from error
        model = recipe.get("model")
        path = model.get("path") if isinstance(model, dict) else None
        if isinstance(path, str):
            candidates.append(Path(path))
    found = (folder / "tokenizer.json" for folder in candidates)
    return next((path for path in found if path.is_file()), None)


def load_decode(archive: Path, model: Path | None) -> Decode | None:
    """The decoder of the tokenizer in folder `model` (None: of the archive's run); None if there is none.

    Raises `ArchiveError` if `model` holds no tokenizer, or one that can't be read.
    """
    path = find_tokenizer(archive) if model is None else model / "tokenizer.json"
    if path is None:
        return None
    if not path.is_file():
        raise ArchiveError(f"{model} holds no tokenizer.json; give the folder of the model that made the archive")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other type for a file that is no tokenizer
        raise ArchiveError(f"{path} is no tokenizer: {error}; give --model the folder of one") from error
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def decode_as_numbers(ids: Sequence[int]) -> str:
    """What stands for the text of tokens where no tokenizer is at hand."""
    return "".join(f"⟨{each}⟩" for each in ids)
