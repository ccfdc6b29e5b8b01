"""Chats in an archive, beside the tokenizer that reads them: `greenroom show FOLDER` needs nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from actors.storage.frames import ArchiveError
from actors.storage.writer import ArchiveWriter
from policies.conversation import Conversation

FIGURES = "figures"
"""Folder beside the archive, of what conversations have drawn."""


def save(conversation: Conversation, folder: Path, model: Path) -> str:
    """Add a conversation to the archive in `folder`, which is made if need be; returns the trajectory's id.

    Raises `ArchiveError` if the folder's chats are with a model of another tokenizer, or it is being written to;
    `OSError` as the file system does.
    """
    tokenizer, own = folder / "model" / "tokenizer.json", model / "tokenizer.json"
    if not tokenizer.exists():
        if folder.exists() and any(each.name != FIGURES for each in folder.iterdir()):
            raise ArchiveError(f"{folder} holds something else than chats; give an empty folder, or one of chats")
        tokenizer.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(own, tokenizer)
    elif tokenizer.read_bytes() != own.read_bytes():
        raise ArchiveError(f"{folder} holds chats with a model of another tokenizer; give another folder")
    writer = ArchiveWriter(folder / "archive")
    try:
        trajectory = conversation.trajectory(writer.stored)
        writer.append(trajectory)
        writer.flush()
    finally:
        writer.close()
    return trajectory.id
