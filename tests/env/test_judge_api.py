"""Code Judge's own test cases for python in our form, against our server with real jails; and what we add.

The cases are those of its `tests/test_main.py`: each on `/run` and on `/judge`, batches on both kinds of batch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from env.call_scheduler import CallScheduler
from env.host_state import HostState
from env.interpreters import Interpreters
from env.judge_api import judge_app
from env.judge_models import EXTENSION, MOST_SUBMISSIONS
from env.judge_queue import JudgeQueue
from env.tool_call import Limits
from tests.support.judge_server import served
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(wall_seconds=60.0, memory_bytes=256 << 20)
BRIEF = LIMITS.model_copy(update={"wall_seconds": 2.0})
FIELDS = {"sub_id", "success", "run_success", "cost", "reason"}
ECHOES_ITS_INPUT = "print(input())"


@asynccontextmanager
async def judging(limits: Limits, workers: int) -> AsyncIterator[httpx.AsyncClient]:
    interpreters = Interpreters(limits, workers, run_id="tests-judge")
    scheduler = CallScheduler(interpreters, cores=workers, workers=workers)
    try:
        async with served(judge_app(JudgeQueue(scheduler, limits, workers=workers, most_open=1000))) as client:
            yield client
    finally:
        await asyncio.gather(scheduler.close(), interpreters.close())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[httpx.AsyncClient]:
    async with judging(LIMITS, workers=4) as client:
        # whatever a worker keeps for later calls, it has after this
        warm = {"type": "batch", "submissions": [python("import time; time.sleep(0.5)")] * 8}
        await post(client, "/run/long-batch", warm)
        yield client


def python(solution: str, input: str | None = None, expected_output: str | None = None) -> dict[str, Any]:
    return {"type": "python", "solution": solution, "input": input, "expected_output": expected_output}


async def post(judge: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await judge.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


both = pytest.mark.parametrize("path", ["/run", "/judge"])


async def test_an_idle_server_says_so(judge: httpx.AsyncClient):
    assert (await judge.get("/ping")).json() == "pong"
    assert (await judge.get("/status")).json() == {"queue": 0, "num_workers": 4}


@both
async def test_output_as_expected_is_a_success(judge: httpx.AsyncClient, path: str):
    answer = await post(judge, path, python(ECHOES_ITS_INPUT, "a", "a"))
    assert (answer["success"], answer["run_success"], answer["reason"]) == (True, True, "")


@both
async def test_a_program_that_runs_too_long_is_a_worker_timeout(path: str):
    solution = "from time import sleep\nprint('begun', flush=True)\nsleep(3600)"
    async with judging(BRIEF, workers=1) as judge:
        answer = await post(judge, path, python(solution, "a", "a"))
    assert (answer["success"], answer["run_success"], answer["reason"]) == (False, False, "worker_timeout")
    assert answer["cost"] >= 2.0
    if path == "/run":
        assert answer["stdout"] == "begun\n" and "2 seconds" in answer["stderr"]


@both
async def test_other_output_than_expected_is_no_success(judge: httpx.AsyncClient, path: str):
    answer = await post(judge, path, python(ECHOES_ITS_INPUT, "a", "b"))
    assert (answer["success"], answer["run_success"], answer["reason"]) == (False, True, "")


@both
async def test_reading_input_that_is_not_there_fails(judge: httpx.AsyncClient, path: str):
    answer = await post(judge, path, python(ECHOES_ITS_INPUT, "", "a"))
    assert (answer["success"], answer["run_success"], answer["reason"]) == (False, False, "")


@pytest.mark.parametrize("kind", ["batch", "long-batch"])
@both
async def test_each_submission_of_a_batch_has_its_own_result(judge: httpx.AsyncClient, path: str, kind: str):
    good, wrong, failing = (python(ECHOES_ITS_INPUT, *rest) for rest in (("a", "a"), ("a", "b"), ("", "b")))
    submissions = [failing, good, wrong, failing, good, failing, good]
    answer = await post(judge, f"{path}/{kind}", {"type": "batch", "submissions": submissions})
    verdicts = [(each["success"], each["run_success"]) for each in answer["results"]]
    known = {id(good): (True, True), id(wrong): (False, True), id(failing): (False, False)}
    assert verdicts == [known[id(submission)] for submission in submissions]


@both
async def test_a_program_whose_child_goes_on_is_stopped_with_it(path: str):
    solution = """
from multiprocessing import Process
from time import sleep
child = Process(target=sleep, args=(3600,))
child.start()
print('the child goes on')
"""
    async with judging(BRIEF, workers=1) as judge:
        await post(judge, "/run", python("1"))
        before = HostState.now()
        answer = await post(judge, path, python(solution, "", "a"))
        assert (answer["success"], answer["run_success"]) == (False, False)
        assert before.processes == HostState.now().processes


@both
async def test_files_can_be_written_where_the_program_is(judge: httpx.AsyncClient, path: str):
    answer = await post(judge, path, python("open('test.txt', 'w').write('Hello')", "", ""))
    assert (answer["success"], answer["run_success"]) == (True, True)


@both
async def test_files_can_not_be_written_outside(judge: httpx.AsyncClient, path: str):
    answer = await post(judge, path, python("open('../test.txt', 'w').write('Hello')", "", ""))
    assert (answer["success"], answer["run_success"]) == (False, False)
    if path == "/run":
        assert "Read-only file system" in answer["stderr"]


# --- what Code Judge's clients rely on ----------------------------------------------------------


@dataclass
class Record:
    """As Code Judge's client builds one from each result: any other field is a TypeError."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    stdout: str | None = None
    stderr: str | None = None
    reason: str = ""


async def test_results_of_a_long_batch_are_just_what_code_judges_client_knows(judge: httpx.AsyncClient):
    submissions = [{"sub_id": f"s{n}", **python(f"print({n})", None, f"{n}")} for n in range(5)]
    answer = await post(judge, "/run/long-batch", {"type": "batch", "submissions": submissions})
    assert answer.keys() == {"sub_id", "results"}
    assert [(r.sub_id, r.success, r.stdout) for r in (Record(**each) for each in answer["results"])] == [
        (f"s{n}", True, f"{n}\n") for n in range(5)
    ]


async def test_other_languages_are_refused_one_by_one(judge: httpx.AsyncClient):
    cpp = {"type": "cpp", "solution": "int main(){}"}
    answer = await post(judge, "/run/long-batch", {"type": "batch", "submissions": [cpp, python("print(1)")]})
    refused, ran = answer["results"]
    assert (refused["run_success"], refused["reason"], ran["run_success"]) == (False, "invalid_input", True)
    assert "'cpp'" in refused["stderr"] and "'python'" in refused["stderr"]


async def test_solutions_are_scripts_and_echo_nothing(judge: httpx.AsyncClient):
    answer = await post(judge, "/run", python("import sys\nsys.stdout.write('x\\n')", "", "x"))
    assert (answer["success"], answer["stdout"]) == (True, "x\n")


# --- what is ours -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "written"), [("/run", True), ("/run/batch", True), ("/judge", False), ("/judge/long-batch", False)]
)
async def test_results_say_how_the_program_ended(judge: httpx.AsyncClient, path: str, written: bool):
    body = python("raise SystemExit(3)")
    answer = await post(judge, path, {"type": "batch", "submissions": [body]} if "batch" in path else body)
    result = answer["results"][0] if "batch" in path else answer
    assert result.keys() == FIELDS | EXTENSION | ({"stdout", "stderr"} if written else set())
    assert (result["status"], result["exit_code"], result["signal"]) == ("error", 3, None)
    assert result["cpu_seconds"] > 0 and result["peak_memory_bytes"] > 1 << 16


async def test_the_extension_can_be_asked_for_and_declined(judge: httpx.AsyncClient):
    batch = {"type": "batch", "submissions": [python("import os; os.abort()")]}
    (result,) = (await post(judge, "/run/long-batch?extended=true", batch))["results"]
    assert (result["status"], result["signal"], result["exit_code"]) == ("killed", 6, None)
    (result,) = (await post(judge, "/run/batch?extended=false", batch))["results"]
    assert result.keys() == FIELDS | {"stdout", "stderr"}


async def test_a_client_that_goes_away_ends_its_programs_and_those_that_wait_never_start(judge: httpx.AsyncClient):
    before = HostState.now()
    batch = {"type": "batch", "submissions": [python("while True: pass")] * 50}
    asked = asyncio.create_task(judge.post("/run/long-batch", json=batch))
    await until(lambda: HostState.now().processes - before.processes)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: HostState.now().processes <= before.processes)
    assert (await post(judge, "/run", python("print(1)")))["run_success"]
    figures = (await judge.get("/metrics")).text
    assert 'greenroom_tools_unserved_total{why="client_gone"} 50.0' in figures
    assert "greenroom_tools_open_submissions 0.0" in figures


async def test_what_is_no_submission_is_refused_with_the_field(judge: httpx.AsyncClient):
    for path, body, field in (
        ("/run", {"type": "python"}, "solution"),
        ("/run/batch", {"type": "batch", "submissions": []}, "submissions"),
        ("/judge/batch", {"type": "batch", "submissions": [{"type": "python", "solution": 7}]}, "solution"),
    ):
        response = await judge.post(path, json=body)
        assert response.status_code == 422 and field in response.json()["detail"][0]["loc"]


@pytest.mark.parametrize(
    "body",
    [
        {"submissions": [{}] * 1000},
        {"submissions": [python("")] * (MOST_SUBMISSIONS + 1)},
        {"submissions": [{**python(""), "options": {str(n): n for n in range(1000)}}]},
    ],
    ids=["no submissions", "too many submissions", "too many options"],
)
async def test_what_is_wrong_a_thousand_times_is_said_once(judge: httpx.AsyncClient, body: dict[str, Any]):
    response = await judge.post("/run/batch", json=body)
    problems = response.json()["detail"]
    assert response.status_code == 422 and len({tuple(each["loc"][:3]) for each in problems}) == 1
    assert len(response.content) < 300


async def test_an_id_that_is_no_text_comes_back_as_it_came(judge: httpx.AsyncClient):
    half = "\ud800"  # of a surrogate pair: JSON can escape it, UTF-8 can't encode it
    submissions = [{**python("print('ä')"), "sub_id": half}, {"type": half, "solution": ""}]
    content = json.dumps({"sub_id": half, "submissions": submissions})
    response = await judge.post("/run/batch", content=content, headers={"content-type": "application/json"})
    answer = response.json()
    assert (answer["sub_id"], answer["results"][0]["sub_id"], answer["results"][0]["stdout"]) == (half, half, "ä\n")
    assert answer["results"][1]["reason"] == "invalid_input"


async def test_the_openapi_page_describes_every_path(judge: httpx.AsyncClient):
    paths = (await judge.get("/openapi.json")).json()["paths"].keys()
    runs = {f"/{kind}{rest}" for kind in ("run", "judge") for rest in ("", "/batch", "/long-batch")}
    assert paths == runs | {"/ping", "/status", "/metrics"}
    assert (await judge.get("/docs")).status_code == 200
