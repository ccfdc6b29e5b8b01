"""Connections to a tool server, which anybody who reaches its port can open, with a token or without.

Invariants:
- what is held for a connection before its request's head is there whole is bounded in bytes and in time;
- a peer that has gone without a word, or does not read its answer, is noticed: its programs end, its memory comes back;
- when a connection ends, each request of it that is not answered learns of it, pipelined ones too.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 64 << 10
"""Of a request's line and headers, give or take what arrives at once."""
HEAD_WITHIN_S = 30.0
"""From the connection, or the first byte of a later request, to the end of the head."""
KEEP_ALIVE_S = 75
"""How long an idle connection stays. Longer than clients keep theirs (httpx 5 s, aiohttp 15 s): whoever sends while the
other side closes loses the request."""
SILENT_AFTER_S = 30
"""Idle seconds after which the kernel asks a peer whether it is there."""
TURNED_AWAY = 4 / 3
"""Connections, as a multiple of those that are served, beyond which further ones are closed unheard. Those between are
told 503; but who says nothing can't be told anything, and takes a descriptor that a program may need."""
DEAD_AFTER_S = 120
"""How long a peer may leave what was sent to it unread, or such a question unanswered."""


def set_limits(listener: socket.socket, dead_after_s: float = DEAD_AFTER_S) -> None:
    """Have the kernel close connections whose peers are gone or don't read; accepted ones inherit it (tcp(7))."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_AFTER_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_AFTER_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead_after_s * 1000))


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose request's head is too long or too slow, and those that are far too many. uvicorn bounds
    none of that: its `limit_concurrency` is for requests whose head is there."""

    head_within_s = HEAD_WITHIN_S

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._too_slow: asyncio.TimerHandle | None = None
        self._overtaken: deque[RequestResponseCycle] = deque()
        """Requests not answered when the next one came: uvicorn tells only the last that its peer has gone."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency * TURNED_AWAY:
            transport.close()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._lacks_head():
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's line and headers hold more than {HEAD_BYTES} bytes.")
        elif self._too_slow is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        while self._overtaken and self._overtaken[0].response_complete:
            self._overtaken.popleft()
        before = self.cycle
        super().on_headers_complete()
        if before is not None and before is not self.cycle and not before.response_complete:
            self._overtaken.append(before)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        for cycle in self._overtaken:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def _lacks_head(self) -> bool:
        """Whether the next request has yet to begin or to say what it is; not while the body of one is coming."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _await_head(self) -> None:
        self._too_slow = self.loop.call_later(self.head_within_s, self._close)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _close(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()
