"""However a run ends, nothing of it is left: no process, no folder."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from actors.system.leftovers import bury_session, make_session_folder, session_processes, sweep_leftovers

ROOT = Path(__file__).parents[3]
PATIENCE_S = 90.0


@contextmanager
def driver(ending: str) -> Iterator[tuple[subprocess.Popen[str], Path, list[psutil.Process]]]:
    """A driver that has opened its stage, the folder of its Ray, and the processes of it."""
    command = [sys.executable, "-m", "tests.actors.system.run_driver", ending]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise AssertionError(f"the driver did not come up:\n{process.communicate()[1]}")
            said = json.loads(line)
            folder, processes = Path(said["folder"]), [psutil.Process(pid) for pid in said["processes"]]
            assert folder.is_dir()
            assert any(part.name() == "raylet" for part in processes)
            assert any(part.name().startswith("ray::Host") for part in processes)
            yield process, folder, processes
        finally:
            if process.poll() is None:
                process.kill()


def still_there(processes: list[psutil.Process]) -> list[str]:
    running = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process.name())
        except psutil.NoSuchProcess:
            continue
    return running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [("return", 0, ""), ("twice", 0, ""), ("raise", 1, "the run failed"), ("fail to start", 1, "made of nothing")],
)
def test_a_run_that_ends_leaves_nothing_behind(ending: str, code: int, message: str) -> None:
    with driver(ending) as (process, folder, processes):
        _, complaints = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, complaints
        assert message in complaints
        assert not folder.exists()
        assert not list(folder.parent.glob(f"gr-{process.pid}-*"))
        assert not still_there(processes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing_behind(number: signal.Signals) -> None:
    with driver("wait") as (process, folder, processes):
        os.killpg(process.pid, number)  # as a terminal does: to the driver and all in its process group
        _, complaints = process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        assert not folder.exists(), f"{sorted(folder.rglob('*'))}; {complaints}"
        assert not still_there(processes)


@pytest.mark.slow
def test_what_a_killed_driver_leaves_dies_and_is_swept_by_the_next() -> None:
    with driver("wait") as (process, folder, processes):
        alive = make_session_folder()
        bound = [part for part in processes if not part.name().endswith("Agent")]
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        psutil.wait_procs(bound, timeout=PATIENCE_S)
        assert not still_there(bound), "they are bound to the life of the driver"
        assert folder.exists()
        assert folder in sweep_leftovers()
        assert not folder.exists()
        assert not still_there(processes)
        assert alive.exists(), "the folder of a living owner is not touched"
        alive.rmdir()


INTERRUPTED = """
import asyncio, os, signal
from actors.system.local_ray import LocalRay
from orchestration.terminal import run_interruptibly

async def work():
    with LocalRay(cpus=1) as ray:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            print("cleaned up", flush=True)
            raise

run_interruptibly(work())
"""


@pytest.mark.slow
def test_a_command_s_own_answer_to_sigterm_outlives_the_start_of_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (130, "cleaned up\n"), done.stderr
    assert done.stderr == "interrupted; everything that ran has been stopped\n"


def test_who_still_writes_to_a_folder_does_not_keep_it() -> None:
    folder = make_session_folder()

    def write() -> None:
        until = time.monotonic() + 0.5
        with suppress(FileNotFoundError):
            for number in itertools.count():
                (folder / f"log-{number}").touch()
                if time.monotonic() > until:
                    return

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        bury_session(folder)
        writing.result()
    assert not folder.exists()


def test_a_folder_that_vanishes_while_it_is_looked_at_ends_no_run() -> None:
    alive = make_session_folder()
    vanished = alive.with_name(f"gr-{2**22 + 1}-1-vanished")
    vanished.symlink_to(alive)  # neither a folder, nor ours to follow
    dangling = alive.with_name(f"gr-{2**22 + 1}-2-vanished")
    dangling.symlink_to(alive / "gone")
    try:
        assert not {vanished, dangling} & {*sweep_leftovers()}
        assert alive.exists()
    finally:
        for each in (vanished, dangling):
            each.unlink(missing_ok=True)
        alive.rmdir()


def test_a_ray_that_can_not_be_started_is_told_in_a_sentence_and_leaves_no_folder() -> None:
    code = """
from actors.system.local_ray import LocalRay
from actors.system.stage import ActorStartFailed

class WithoutRoom(LocalRay):
    def _start(self, params):
        (self.folder / "half").touch()
        raise RuntimeError("Failed to write to temp file")

ray = WithoutRoom()
try:
    with ray:
        pass
except ActorStartFailed as failed:
    print(failed)
assert ray.folder is None and LocalRay.open is None
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Ray could not be started, with its files in" in done.stdout
    assert "MiB are free there; TMPDIR names another place): Failed to write to temp file" in done.stdout


def test_processes_of_a_session_are_known_by_its_mark(tmp_path: Path) -> None:
    held = tmp_path / "log"
    held.touch()
    nap = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'])"]
    with (
        subprocess.Popen(nap, env={**os.environ, "GREENROOM_SESSION": str(tmp_path)}) as marked,
        subprocess.Popen(["sleep", "60"]) as other,
        held.open() as log,
        subprocess.Popen(["sleep", "60"], stdin=log) as holder,
    ):
        try:
            found = {process.pid for process in session_processes(tmp_path)}
            assert {marked.pid, holder.pid} <= found
            assert other.pid not in found
        finally:
            for process in (*session_processes(tmp_path), psutil.Process(other.pid)):
                process.kill()


def test_paths_of_sockets_fit_into_their_limit() -> None:
    folder = make_session_folder()
    try:
        longest = folder / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
        assert len(str(longest)) + len("4194304") - len(str(os.getpid())) <= 107
    finally:
        folder.rmdir()
