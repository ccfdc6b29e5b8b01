"""`greenroom serve-tools` as a process: it starts, serves, refuses what is unsafe, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from env import cgroup_hierarchy
from env.host_state import cgroups_of, sandbox_processes
from orchestration.cli import app
from orchestration.recipe import RecipeError
from orchestration.serving import ServeOptions, read_token
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "orchestration.cli", "serve-tools", "--port", "0", "--wall-seconds", "60"]


@contextmanager
def server(*options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    process = subprocess.Popen(
        [*SERVE, *options], cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on http://"), line
        yield process, line.split()[2]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def program(solution: str) -> dict[str, str]:
    return {"type": "python", "solution": solution}


async def running(process: subprocess.Popen[str], programs: int) -> list[int]:
    """The sandbox's processes once so many programs run."""

    def enough() -> list[int]:
        found = sandbox_processes(process.pid)
        return [each.pid for each in found] if sum(each.role == "program" for each in found) >= programs else []

    return await until(enough)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.slow
async def test_a_signal_ends_it_with_an_answer_to_all_and_nothing_left():
    with server("--cores", "1") as (process, address):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            assert (await client.post("/run", json=program("print(6 * 7)"))).json()["stdout"] == "42\n"
            batch = {"type": "batch", "submissions": [program("while True: pass")] * 8}
            asked = asyncio.create_task(client.post("/run/long-batch", json=batch))
            processes = await running(process, programs=1)
            process.send_signal(signal.SIGTERM)
            results = (await asked).json()["results"]
            assert [result["reason"] for result in results] == ["queue_timeout"] * 8  # clients try again
        assert await asyncio.to_thread(process.wait, 30) == 130
        assert all(map(gone, processes))
        if cgroup_hierarchy.find_hierarchy() is not None:
            assert list(cgroups_of(process.pid)) == []


@pytest.mark.slow
async def test_over_ray_it_survives_the_death_of_an_environment():
    with server("--cores", "1", "--environments", "2") as (process, address):
        async with httpx.AsyncClient(base_url=address, timeout=120, trust_env=False) as client:
            assert (await client.get("/status")).json() == {"queue": 0, "num_workers": 8}
            solutions = [f"import time; time.sleep(1); print({n})" for n in range(8)]
            batch = {"type": "batch", "submissions": [program(each) for each in solutions]}
            asked = asyncio.create_task(client.post("/run/long-batch", json=batch))
            await running(process, programs=2)
            victim = environment_processes(process.pid)[0]
            os.kill(victim, signal.SIGKILL)
            results = (await asked).json()["results"]
            assert [(each["run_success"], each["stdout"]) for each in results] == [(True, f"{n}\n") for n in range(8)]
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 130
        assert list(cgroups_of(victim)) == []


def environment_processes(server_pid: int) -> list[int]:
    """The processes that hold jails: parents of the sandbox's outermost processes."""
    jails = [each.pid for each in sandbox_processes(server_pid) if each.role == "jail"]
    return sorted({psutil.Process(jail).ppid() for jail in jails})


def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GREENROOM_TOKEN", raising=False)
    with pytest.raises(RecipeError, match=r"0\.0\.0\.0 can be reached .* --token-file"):
        ServeOptions(host="0.0.0.0", token=read_token(None))
    (tmp_path / "token").write_text("secret\n")
    assert ServeOptions(host="0.0.0.0", token=read_token(tmp_path / "token")).token == "secret"
    for loopback in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        ServeOptions(host=loopback)
    monkeypatch.setenv("GREENROOM_TOKEN", "of the environment")
    assert read_token(None) == "of the environment"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(RecipeError, match="token"):
        read_token(tmp_path / "token")


def test_white_space_around_a_token_is_not_part_of_it_and_alone_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GREENROOM_TOKEN", "secret\n")
    assert read_token(None) == "secret"
    monkeypatch.setenv("GREENROOM_TOKEN", "\n")
    with pytest.raises(RecipeError, match="GREENROOM_TOKEN is empty"):
        read_token(None)
    monkeypatch.setenv("GREENROOM_TOKEN", "")
    assert read_token(None) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "65536"], "--port must be at most 65535"),
        (["--port", "-1"], "--port must be at least 0"),
        (["--cores", "-1"], "--cores must be at least 0"),
        (["--most-open", "0"], "--most-open must be at least 1"),
        (["--environments", "-1"], "--environments must be at least 0"),
        (["--wall-seconds", "nan"], "wall_seconds can't be nan"),
        (["--memory-mib", "0"], "memory_bytes can't be 0"),
        (["--cores", "1000000"], "4000000 workers need .*ulimit -Hn"),
    ],
)
def test_an_option_of_no_use_is_refused_with_its_name(options: list[str], said: str):
    result = CliRunner().invoke(app, ["serve-tools", *options])
    assert isinstance(result.exception, RecipeError), result.output
    assert re.search(said, str(result.exception))


def test_a_token_that_no_header_can_hold_is_refused():
    with pytest.raises(RecipeError, match="the token holds"):
        ServeOptions(token="two\nlines")


def test_a_ray_address_without_environments_is_refused():
    with pytest.raises(RecipeError, match="--environments"):
        ServeOptions(ray_address="10.0.0.1:6379")


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*SERVE, "--port", str(port)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, f"port {port}" in done.stderr) == (2, True)
