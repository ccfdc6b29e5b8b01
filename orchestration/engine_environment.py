"""Environment variables of a process that hosts an engine; torch, vLLM and the hub's library read them when they are
imported, and never again."""

from __future__ import annotations

import os

QUIET_ENGINE = {
    # The sampler would be compiled at the first step, for half a minute, and gains nothing on a small model.
    "TORCH_COMPILE_DISABLE": "1",
    # The operating system places threads better than vLLM does when actors share cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


def host_engine_here(log_level: str = "WARNING") -> None:
    """Make this process one that hosts an engine. Commands do so before anything else: most of what they import
    brings torch or transformers along."""
    os.environ.update(QUIET_ENGINE | {"VLLM_LOGGING_LEVEL": log_level})
