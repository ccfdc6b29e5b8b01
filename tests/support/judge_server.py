"""A tool server in the test's own process and loop, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import httpx
import uvicorn
from fastapi import FastAPI


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose requests go through TCP to `app`."""
    async with serving(app) as (host, port):
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60, trust_env=False) as client:
            yield client


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI, protocol: type[asyncio.Protocol] | Literal["auto"] = "auto", most_connections: int | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Where `app` is served: host and port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            http=protocol,
            log_level="warning",
            access_log=False,
            lifespan="off",
            limit_concurrency=most_connections,
            timeout_graceful_shutdown=10,
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            await running
