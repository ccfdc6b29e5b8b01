"""Which data a stage uses, as recipes state it: problems with golds, and chats to imitate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from policies.options import Options


class DatasetOptions(Options):
    """Problems of a data set: which mapping reads its rows, where they are, and which of them count."""

    name: str = "plain"
    """A mapping of `policies.problem_sets`, such as `gsm8k`; `greenroom data list` shows them. `plain` takes columns
    `question` and `answer`, and `id` where there is one."""
    path: str = ""
    """A file (.jsonl, .parquet, .csv), a folder, or an id on the Hugging Face hub; by default the set's own id."""
    split: str = ""
    """Of a folder or an id; by default the set's own."""
    integers_only: bool = False
    """Whether problems are left out whose gold is not an integer (the paper trains on integers only)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only so many, from the start."""
    keep: Path | None = None
    """A file that `greenroom data filter` has written: only problems whose ids it holds."""
    decontaminate: tuple[str, ...] = ()
    """Files or names of evaluation sets; problems that share eight words in a row with one of theirs are left out."""
    seed: int = 0
    """Of the order of choices, where a set has any."""


ChatFormatName = Literal[
    "chat", "toolace", "apigen-mt", "glaive-v2", "magicoder", "tulu3-if", "llama-nemotron", "gsm8k-traces"
]


class ChatDataOptions(Options):
    """Dialogues to imitate."""

    name: ChatFormatName = "chat"
    """How rows are read (`policies.chat_sets`). `chat`: `messages`, and `tools` where there are any."""
    path: str = ""
    """A file (.jsonl, .parquet, .csv), a folder, or an id on the Hugging Face hub; by default the set's own id."""
    split: str = "train"
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only so many of this set, from the start."""
