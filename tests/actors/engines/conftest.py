"""One real vLLM engine on a tiny model, shared by all tests of the session that need one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_options import VllmOptions
from actors.system.clock import RealClock
from orchestration.engine_environment import host_engine_here
from orchestration.recipe import ModelSettings, ScratchModel
from orchestration.tiny_model import write_scratch_model

SEQUENCE_TOKENS, KV_TOKENS = 256, 2048


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model, fresh."""
    settings = ModelSettings(scratch=ScratchModel(max_tokens=SEQUENCE_TOKENS), dtype="float32")
    return write_scratch_model(settings, 0, tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    host_engine_here()
    thread = ThreadPoolExecutor(1)

    async def offload(cost: Any, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    options = VllmOptions(
        dtype="float32",
        max_sequence_tokens=SEQUENCE_TOKENS,
        kv_tokens=KV_TOKENS,
        max_running=32,
        max_step_tokens=256,
    )
    made = VllmEngine(
        model=str(tiny_model),
        options=options,
        seed=0,
        clock=RealClock(),
        offload=offload,
        spawn=asyncio.ensure_future,
    )
    await made.start()
    yield made
    await made.close()
    thread.shutdown()
