"""A real engine in this process, without actors: for commands that need nothing but an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.engines.engine import EngineCapacity
from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_options import VllmOptions
from actors.system.clock import RealClock


@asynccontextmanager
async def hosted_engine(
    model: Path, options: VllmOptions, *, threads: int, seed: int
) -> AsyncIterator[tuple[VllmEngine, EngineCapacity]]:
    """vLLM on `model`, started, on a thread of its own; closed when the context is left.

    Args:
        threads: compute threads of the engine (CPU); set for this process.

    Raises `EngineFailed` if vLLM can't load the model.
    """
    import torch

    torch.set_num_threads(threads)
    thread = ThreadPoolExecutor(1)
    pumps: list[asyncio.Task[Any]] = []

    async def offload(cost: Any, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def spawn(work: Any) -> asyncio.Task[Any]:
        pumps.append(asyncio.ensure_future(work))
        return pumps[-1]

    engine = VllmEngine(model=str(model), options=options, seed=seed, clock=RealClock(), offload=offload, spawn=spawn)
    try:
        yield engine, await engine.start()
    finally:
        await engine.close()
        for pump in pumps:
            pump.cancel()
        thread.shutdown()
