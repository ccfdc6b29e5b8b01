"""What a tool server asks of requests before it reads them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from env.http_guard import Guard
from env.judge_api import judge_app
from env.judge_queue import JudgeQueue
from env.tool_call import Limits, ToolCall, ToolResult
from tests.support.judge_server import served

BODY_BYTES = 1000


class Echo:
    """Answers with the length of the program, once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()

    async def run(self, call: ToolCall) -> ToolResult:
        await self.may.wait()
        return ToolResult(id=call.id, status="success", stdout=str(len(call.code)))


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def guarded(echo: Echo) -> AsyncIterator[httpx.AsyncClient]:
    queue = JudgeQueue(echo, Limits(), workers=1, most_open=100)
    app = judge_app(queue, token="open sesame", body_bytes=BODY_BYTES, all_bodies_bytes=2 * BODY_BYTES)
    async with served(app) as client:
        yield client


BEARER = {"authorization": "Bearer open sesame"}
PROGRAM = {"type": "python", "solution": "1"}


@pytest.mark.parametrize("path", ["/run", "/run/long-batch", "/status", "/metrics", "/docs", "/openapi.json", "/none"])
async def test_nothing_is_served_without_the_token(guarded: httpx.AsyncClient, path: str):
    for authorization in (None, b"Bearer open", b"Basic !", b"Basic \xff", b"Bearer \xff", b"open sesame"):
        headers = [] if authorization is None else [(b"authorization", authorization)]
        response = await guarded.post(path, headers=headers, json=PROGRAM)
        assert (response.status_code, "token" in response.json()["detail"]) == (401, True)


async def test_the_token_opens_as_bearer_and_as_password(guarded: httpx.AsyncClient):
    assert (await guarded.post("/run", headers=BEARER, json=PROGRAM)).status_code == 200
    by_password = await guarded.post("/run", auth=("anybody", "open sesame"), json=PROGRAM)
    assert by_password.status_code == 200
    assert (await guarded.get("/ping")).json() == "pong"  # for health checks


async def test_a_request_that_is_too_large_is_refused_with_its_size_known_or_not(guarded: httpx.AsyncClient):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    for content in (b" " * (BODY_BYTES + 1), pieces()):
        response = await guarded.post("/run", headers={**BEARER, "content-type": "application/json"}, content=content)
        assert (response.status_code, str(BODY_BYTES) in response.json()["detail"]) == (413, True)


async def test_requests_under_way_hold_no_more_than_they_may_and_room_comes_back(
    guarded: httpx.AsyncClient, echo: Echo
):
    echo.may.clear()
    large = {"type": "python", "solution": "#" * 700}
    asked = [asyncio.create_task(guarded.post("/run", headers=BEARER, json=large)) for _ in range(4)]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    refused = done.pop().result()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    echo.may.set()
    statuses = [(await task).status_code for task in waiting]
    assert statuses.count(200) == 2
    assert (await guarded.post("/run", headers=BEARER, json=large)).status_code == 200


async def test_a_token_may_hold_any_letters(echo: Echo):
    app = judge_app(JudgeQueue(echo, Limits(), workers=1, most_open=1), token="schlüssel")
    async with served(app) as client:
        for header in ("Bearer schlüssel", "Basic " + base64.b64encode("wer auch immer:schlüssel".encode()).decode()):
            response = await client.post("/run", headers=[(b"authorization", header.encode())], json=PROGRAM)
            assert response.status_code == 200


async def test_a_body_that_stays_away_is_given_up_and_its_room_comes_back():
    sent: list[Message] = []
    pieces: list[Message] = []

    async def receive() -> Message:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    async def echoes_nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("there is no whole request")

    guard = Guard(echoes_nothing, "", BODY_BYTES, BODY_BYTES, piece_within_s=0.01)
    for _ in range(2):  # the second finds room for all of its body again
        pieces.append({"type": "http.request", "body": b"x" * BODY_BYTES, "more_body": True})
        await guard({"type": "http", "path": "/run", "headers": []}, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [408, 408]
