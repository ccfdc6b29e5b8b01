"""Connections that say nothing, or too much, or do not listen, are closed; slow ones that mean it are not."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from fastapi import FastAPI, Request

from orchestration.http_connections import HEAD_BYTES, BoundedConnection, set_limits
from tests.support.judge_server import serving
from tests.support.waiting import until

GET = b"GET /ping HTTP/1.1\r\nhost: here\r\n"


class Impatient(BoundedConnection):
    head_within_s = 0.1


class ByHand(BoundedConnection):
    """Too much time has passed when the test says so."""

    head_within_s = 3600.0
    latest: ClassVar[ByHand]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        ByHand.latest = self

    @property
    def waits_for_head(self) -> bool:
        return self._too_slow is not None

    def time_passes(self) -> None:
        if self.waits_for_head:
            self._close()


def _app() -> FastAPI:
    app = FastAPI()

    @app.get("/ping")
    async def ping() -> str:
        return "pong"

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    return app


@asynccontextmanager
async def connected(protocol: type[BoundedConnection]):
    async with serving(_app(), protocol) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        yield reader, writer
        writer.close()


async def answered(reader: asyncio.StreamReader) -> bytes:
    """The status line of an answer whose body has a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return head.split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", GET], ids=["nothing", "half a head"])
async def test_a_head_that_does_not_come_whole_ends_its_connection(sent: bytes):
    async with connected(Impatient) as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


async def test_a_later_head_that_does_not_come_whole_ends_it_too():
    async with connected(ByHand) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert await answered(reader) == b"HTTP/1.1 200 OK"
        ByHand.latest.time_passes()  # it is idle, and may be
        writer.write(GET)
        await until(lambda: ByHand.latest.waits_for_head)
        ByHand.latest.time_passes()
        assert await reader.read() == b""


async def test_a_body_may_take_longer_than_a_head():
    async with connected(ByHand) as (reader, writer):
        writer.write(b"POST /length HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\n")
        await until(lambda: ByHand.latest.cycle is not None)  # its head is there
        for _ in range(4):
            ByHand.latest.time_passes()
            writer.write(b"x")
            await asyncio.sleep(0.01)  # so that it comes in pieces
        assert await answered(reader) == b"HTTP/1.1 200 OK"


async def test_a_head_without_an_end_is_refused():
    async with connected(BoundedConnection) as (reader, writer):
        writer.write(GET + b"x: ")
        for _ in range(4):
            writer.write(b"y" * HEAD_BYTES)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")


async def test_silent_connections_do_not_take_more_descriptors_than_they_may():
    async with serving(_app(), BoundedConnection, most_connections=3) as (host, port):
        silent = [await asyncio.open_connection(host, port) for _ in range(10)]
        for reader, _ in silent[4:]:
            assert await reader.read() == b""
        silent[0][1].write(GET + b"\r\n")
        assert await answered(silent[0][0]) == b"HTTP/1.1 503 Service Unavailable"
        silent[1][1].close()
        silent[2][1].close()
        await asyncio.sleep(0.1)  # the server learns of it
        silent[3][1].write(GET + b"\r\n")
        assert await answered(silent[3][0]) == b"HTTP/1.1 200 OK"
        for _, writer in silent:
            writer.close()


async def test_each_of_the_requests_of_a_lost_connection_learns_of_it():
    app, begun, gone = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.get("/wait")
    async def wait(request: Request) -> None:
        begun.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(app, BoundedConnection) as (host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /wait HTTP/1.1\r\nhost: here\r\n\r\n" * 2)
        await begun.wait()
        writer.close()
        await gone.wait()


async def test_a_peer_that_does_not_read_is_given_up():
    lost: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(bytes(32 << 20))
            await writer.drain()
        except OSError as error:
            lost.set_result(error)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        set_limits(listener, dead_after_s=0.5)
        async with await asyncio.start_server(answer, sock=listener):
            with socket.create_connection(listener.getsockname()):
                assert isinstance(await lost, OSError)
