"""What the mailbox is measured against: bare Ray calls."""

from __future__ import annotations

import importlib
from typing import Any

import ray

from actors.system.message import Message, decode, encode
from actors.system.ray_stage import CONCURRENCY


class _PlainEcho:
    """Answers each call with the message that it brought."""

    def __init__(self, module: str) -> None:
        importlib.import_module(module)  # its messages

    async def echo(self, tag: str, body: bytes) -> tuple[str, bytes]:
        message = decode(tag, body)
        return type(message).tag, encode(message)


class PlainRayEcho:
    """What the mailbox is measured against: one bare Ray call per request, models validated on both sides."""

    def __init__(self, module: str) -> None:
        """`module` defines the messages. Raises `ValueError` outside of an open stage."""
        if not ray.is_initialized():
            raise ValueError("Ray does not run; open a RayStage first")
        self._handle: Any = ray.remote(_PlainEcho).options(num_cpus=0, max_concurrency=CONCURRENCY).remote(module)

    async def echo(self, message: Message) -> Message:
        return decode(*await self._handle.echo.remote(message.tag, encode(message)))

    def close(self) -> None:
        ray.kill(self._handle)
