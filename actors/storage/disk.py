"""What makes a file last, and what is said where the file system does not take one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from actors.system.actor import CannotGoOn


class CannotWrite(CannotGoOn):
    """The file system does not take what has to be written: it is full, say."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """For work that writes to `folder`: what the file system refuses is raised as `CannotWrite`, which names it."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(folder, error.strerror or str(error)) from error
    except SafetensorError as error:  # its words for what the file system said
        raise _cannot_write(folder, str(error).removeprefix("Error while serializing: ")) from error


@contextmanager
def removed_on_failure(partial: Path) -> Iterator[None]:
    """What is half written when the block fails goes again: it may be what has filled the disk."""
    try:
        yield
    except Exception:  # whatever it is, it is raised on
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        raise


def _cannot_write(folder: Path, why: str) -> CannotWrite:
    return CannotWrite(f"{folder} can't be written to ({why}); make room there, or mend what else keeps files out")


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
