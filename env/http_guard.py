"""What an HTTP request must pass before a tool server reads it: the token, and bounds on what is held in memory.

Invariants:
- with a token, nothing but `/ping` is served without it; the comparison takes the same time whatever was sent;
- the bodies of all requests that are not answered yet are bounded together, and each of them alone;
- a body that does not come does not hold what has come of it for ever.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/ping"})
PIECE_WITHIN_S = 60.0
"""How long a client may send nothing of a body that it has begun."""


class Guard:
    """ASGI middleware.

    Args:
        token: what requests must bring as `Authorization: Bearer TOKEN`, or as the password of Basic authentication
            (`http://any:TOKEN@host/`, which clients that know nothing of tokens send by themselves); none if empty.
        body_bytes: most that one request may hold.
        all_bodies_bytes: most that all requests under way may hold together.
        piece_within_s: how long a client may send nothing of a body that it has begun.
    """

    def __init__(
        self, app: ASGIApp, token: str, body_bytes: int, all_bodies_bytes: int, piece_within_s: float = PIECE_WITHIN_S
    ) -> None:
        self._app, self._token, self._piece_within_s = app, token.encode(), piece_within_s
        self._body_bytes, self._all_bodies_bytes = body_bytes, all_bodies_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._token and scope["path"] not in OPEN_PATHS and not self._has_token(headers.get("authorization", "")):
            await _refuse(send, 401, "A token is needed: send `Authorization: Bearer TOKEN`.")
            return
        size = headers.get("content-length", "")
        if size.isdigit() and int(size) > self._body_bytes:  # refused before it is sent
            await _refuse(send, 413, self._too_long)
            return
        body = bytearray()
        try:
            async for piece in _pieces(receive, self._piece_within_s):
                if piece is None:
                    await _refuse(send, 408, f"Nothing came of the request for {self._piece_within_s:g} seconds.")
                    return
                body += piece
                self._held += len(piece)
                if len(body) > self._body_bytes:
                    await _refuse(send, 413, self._too_long)
                    return
                if self._held > self._all_bodies_bytes:
                    await _refuse(send, 503, "The requests under way hold as much memory as they may; try again.")
                    return
            await self._app(scope, _again(bytes(body), receive), send)
        finally:
            self._held -= len(body)

    @property
    def _too_long(self) -> str:
        return f"The request holds more than {self._body_bytes} bytes; send smaller batches."

    def _has_token(self, authorization: str) -> bool:
        kind, _, text = authorization.partition(" ")
        value = text.encode("latin-1")  # the bytes that were sent
        if kind.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(value.strip(), self._token)


async def _pieces(receive: Receive, within_s: float) -> AsyncIterator[bytes | None]:
    """A request's body as it arrives; None, and no more, if nothing arrives in time. What a client that has gone away
    sent of it is not told from a whole one: nobody reads the answer."""
    more = True
    while more:
        try:
            async with asyncio.timeout(within_s):
                message = await receive()
        except TimeoutError:
            yield None
            return
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that has been read, then whatever comes next."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="greenroom tools"'))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
