"""Environment variables of a process that hosts an engine; torch and vLLM read them when they are imported."""

from __future__ import annotations

QUIET_ENGINE = {
    # The sampler would be compiled at the first step, for half a minute, and gains nothing on a small model.
    "TORCH_COMPILE_DISABLE": "1",
    # The operating system places threads better than vLLM does when actors share cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
