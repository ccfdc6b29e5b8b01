"""A tool server: Code Judge's HTTP API in front of the sandbox. `/docs` shows it in a browser.

    scheduler = CallScheduler(interpreters, cores=2, workers=8)
    app = judge_app(JudgeQueue(scheduler, Limits(), workers=8, most_open=50_000))

Code Judge's own client and rStar2-Agent's tool client work unchanged. The fields that are ours (`EXTENSION`) are in
all answers but those of `/run/long-batch`, where that client would choke on them; `?extended=true` asks for them there
(docs/adr/0006).

Invariants:
- a batch is answered in the order of its submissions, and each of its submissions has its turn by itself;
- a client that goes away before its answer ends its programs, and those that wait for it never start.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from env.http_guard import Guard
from env.judge_models import (
    EXTENSION,
    BatchJudgeResult,
    BatchRunResult,
    BatchSubmission,
    JudgeResult,
    RunResult,
    ServerStatus,
    Submission,
)
from env.judge_queue import JudgeQueue

PATIENCE_S = 4.0
"""How long a submission may wait for its turn (Code Judge's default). It starts with the request."""
LONG_PATIENCE_S = 3600.0
"""The same for long batches."""
BODY_BYTES = 64 << 20
ALL_BODIES_BYTES = 1 << 30

_WRITTEN = frozenset({"stdout", "stderr"})

Extended = Annotated[bool, Query(description="Whether results hold `status`, `exit_code`, `signal`, CPU and memory.")]


def judge_app(
    queue: JudgeQueue, *, token: str = "", body_bytes: int = BODY_BYTES, all_bodies_bytes: int = ALL_BODIES_BYTES
) -> FastAPI:
    """The application; it starts and closes nothing.

    Args:
        token: what requests must bring (see `env.http_guard`); none if empty.
        body_bytes: most that one request may hold; `all_bodies_bytes`: all that are under way together.
    """
    app = FastAPI(title="greenroom tools", summary="Runs Python in a sandbox; speaks Code Judge's API.")
    app.add_middleware(Guard, token=token, body_bytes=body_bytes, all_bodies_bytes=all_bodies_bytes)
    app.add_exception_handler(RequestValidationError, _say_what_is_wrong)
    _add_service_routes(app, queue)
    _add_run_routes(app, _Routes(queue))
    _add_judge_routes(app, _Routes(queue))
    return app


def _add_service_routes(app: FastAPI, queue: JudgeQueue) -> None:
    @app.get("/ping")
    async def ping() -> str:
        """`"pong"`; needs no token."""
        return "pong"

    @app.get("/status")
    async def status() -> ServerStatus:
        """How much waits, and how much can run at once."""
        return ServerStatus(queue=queue.waiting, num_workers=queue.workers)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(generate_latest(queue.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_run_routes(app: FastAPI, routes: _Routes) -> None:
    @app.post("/run", response_model=RunResult)
    async def run(submission: Submission, request: Request, extended: Extended = True) -> Response:
        """Run one program."""
        return await routes.one(submission, request, extended, frozenset())

    @app.post("/run/batch", response_model=BatchRunResult)
    async def run_batch(batch: BatchSubmission, request: Request, extended: Extended = True) -> Response:
        """Run several programs; those that can't start soon are told `queue_timeout`."""
        return await routes.many(batch, request, PATIENCE_S, extended, frozenset())

    @app.post("/run/long-batch", response_model=BatchRunResult)
    async def run_long_batch(batch: BatchSubmission, request: Request, extended: Extended = False) -> Response:
        """Run several programs, however long they must wait for their turn (up to an hour)."""
        return await routes.many(batch, request, LONG_PATIENCE_S, extended, frozenset())


def _add_judge_routes(app: FastAPI, routes: _Routes) -> None:
    @app.post("/judge", response_model=JudgeResult)
    async def judge(submission: Submission, request: Request, extended: Extended = True) -> Response:
        """As `/run`, without what the program wrote."""
        return await routes.one(submission, request, extended, _WRITTEN)

    @app.post("/judge/batch", response_model=BatchJudgeResult)
    async def judge_batch(batch: BatchSubmission, request: Request, extended: Extended = True) -> Response:
        """As `/run/batch`, without what the programs wrote."""
        return await routes.many(batch, request, PATIENCE_S, extended, _WRITTEN)

    @app.post("/judge/long-batch", response_model=BatchJudgeResult)
    async def judge_long_batch(batch: BatchSubmission, request: Request, extended: Extended = True) -> Response:
        """As `/run/long-batch`, without what the programs wrote."""
        return await routes.many(batch, request, LONG_PATIENCE_S, extended, _WRITTEN)


class _Routes:
    """What the routes have in common."""

    def __init__(self, queue: JudgeQueue) -> None:
        self._queue = queue

    async def one(self, submission: Submission, request: Request, extended: bool, left_out: frozenset[str]) -> Response:
        result = await _while_connected(request, self._queue.answer(submission, PATIENCE_S))
        if result is None:
            return _GONE
        return _AsciiJson(_fields(result, extended, left_out))

    async def many(
        self, batch: BatchSubmission, request: Request, patience_s: float, extended: bool, left_out: frozenset[str]
    ) -> Response:
        results = await _while_connected(request, self._answers(batch.submissions, patience_s))
        if results is None:
            return _GONE
        fields = [_fields(result, extended, left_out) for result in results]
        return _AsciiJson({"sub_id": batch.sub_id or str(uuid.uuid4()), "results": fields})

    async def _answers(self, submissions: list[Submission], patience_s: float) -> list[RunResult]:
        return list(await asyncio.gather(*(self._queue.answer(each, patience_s) for each in submissions)))


def _fields(result: RunResult, extended: bool, left_out: frozenset[str]) -> dict[str, Any]:
    return result.model_dump(exclude=set(left_out if extended else left_out | EXTENSION))


class _AsciiJson(JSONResponse):
    """Whatever is not ASCII is escaped: ids come back as they came, and those may hold half of a surrogate pair, which
    UTF-8 can't say."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


_GONE = Response(status_code=499)
"""Nobody reads it."""


async def _while_connected[T](request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The outcome of `work`, which is cancelled, and None returned, when the client goes away first."""
    working = asyncio.get_running_loop().create_task(work)
    gone = asyncio.get_running_loop().create_task(_until_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    """The body has been read: what comes next is that the connection ended."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _say_what_is_wrong(_: Request, error: Exception) -> JSONResponse:
    """Where and what, without the input, which may be large and need not be text that can be sent back."""
    assert isinstance(error, RequestValidationError)
    problems = [{"loc": [str(part) for part in one["loc"]], "msg": one["msg"]} for one in error.errors()]
    return _AsciiJson({"detail": problems}, status_code=422)
