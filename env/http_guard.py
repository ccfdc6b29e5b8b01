"""What an HTTP request must pass before a tool server reads it: the token, and bounds on what is held in memory.

Invariants:
- with a token, nothing but `/ping` is served without it; the comparison takes the same time whatever was sent;
- the bodies of all requests that are not answered yet are bounded together, and each of them alone.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/ping"})


class _TooLarge(Exception):
    """The body passes a bound; holds the status to answer with and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """ASGI middleware.

    Args:
        token: what requests must bring as `Authorization: Bearer TOKEN`, or as the password of Basic authentication
            (`http://any:TOKEN@host/`, which clients that know nothing of tokens send by themselves); none if empty.
        body_bytes: most that one request may hold.
        all_bodies_bytes: most that all requests under way may hold together.
    """

    def __init__(self, app: ASGIApp, token: str, body_bytes: int, all_bodies_bytes: int) -> None:
        self._app, self._token = app, token
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
        await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine = 0
        answering = False

        async def receive_some() -> Message:
            nonlocal mine
            message = await receive()
            length = len(message.get("body", b""))
            mine += length
            self._held += length
            if mine > self._body_bytes:
                raise _TooLarge(413, self._too_long)
            if self._held > self._all_bodies_bytes:
                raise _TooLarge(503, "The requests under way hold as much memory as they may; try again.")
            return message

        async def send_some(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self._app(scope, receive_some, send_some)
        except _TooLarge as error:
            if not answering:
                await _refuse(send, error.status, error.why)
        finally:
            self._held -= mine

    @property
    def _too_long(self) -> str:
        return f"The request holds more than {self._body_bytes} bytes; send smaller batches."

    def _has_token(self, authorization: str) -> bool:
        kind, _, value = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(value.strip().encode(), self._token.encode())


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="greenroom tools"'))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
