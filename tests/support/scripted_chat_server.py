"""A small server with OpenAI's chat completions whose answers are scripted: there is no model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response

type Script = Callable[[list[dict[str, Any]], dict[str, Any]], tuple[str, str] | Response]
"""(messages, request) -> (text, finish reason), or whatever else the server shall say."""


@contextlib.asynccontextmanager
async def scripted_chat_server(script: Script, models: tuple[str, ...] = ("scripted",)) -> AsyncIterator[str]:
    """The server's URL while it runs, on a port of its own."""
    app = FastAPI()

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "us"} for name in models]}

    @app.post("/v1/chat/completions")
    async def complete(request: dict[str, Any]) -> Any:
        if request["model"] not in models:
            raise HTTPException(404, f"no model {request['model']}")
        said = script(request["messages"], request)
        if isinstance(said, Response):
            return said
        text, reason = said
        message = {"role": "assistant", "content": text}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 9, "completion_tokens": len(text.split()), "total_tokens": 9},
        }

    with socket.create_server(("127.0.0.1", 0)) as listener:  # listens: who connects early waits
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving
