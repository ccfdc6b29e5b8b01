"""What makes a file last."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
