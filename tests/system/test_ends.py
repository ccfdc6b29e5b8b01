"""Runs that can't go on, as wholes: each ends by itself, says why in a sentence, leaves nothing behind, and is resumed.

Real Ray, vLLM, nsjail and learner, and real causes: a Python whose interpreter can't start, memory that the kernel does
not give, a file system without room. One run meets them one after another, since each start costs seconds.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from env import cgroup_hierarchy, cgroups
from env.tool_call import Limits
from tests.support.own_python import Broken, environment_on, own_installation
from tests.system.test_train import ROOT, learner_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = f"ends-{os.getpid()}"
"""Of the run: nothing else on this machine goes by it."""
SETTINGS = [
    f"name={NAME}",
    "checkpoints.interval_seconds=0",
    "generators.count=1",
    "generators.engine.kv_tokens=1024",
    "environments.count=1",
    "rollouts.count=1",
    "evaluation.before=true",
    "evaluation.count=24",
    "evaluation.limits.max_turn_tokens=48",
    "learner.threads=1",
    "stages.sft.steps=6",
    "stages.sft.batch=256",
    "stages.sft.demonstrations=1024",
    "stages.sft.optimiser.micro_batch_tokens=40000",
    "stages.rl-1.steps=1",
    "stages.rl-1.prompts=2",
    "stages.rl-1.group=2",
    "stages.rl-1.limits.max_turn_tokens=32",
    "stages.rl-2.steps=1",
    "stages.rl-2.prompts=2",
    "stages.rl-2.group=2",
    "stages.rl-2.limits.max_turn_tokens=32",
]
"""A step of SFT takes more than a GiB of memory at once; with smaller micro batches a tenth of that."""
PATIENCE_S = 550.0
TOO_LITTLE_BYTES = 200 << 20
"""Memory that a learner may take beyond what it has when it has started."""
SMALLER = "stages.sft.optimiser.micro_batch_tokens=2000"

type Cause = Callable[[subprocess.Popen[str]], None]
"""Given the process that directs the run."""


class Run:
    """One run, begun once and gone on with after each of its ends."""

    def __init__(self, runs: Path, installation: Path, environment: Path) -> None:
        self.runs, self.folder, self.installation = runs, runs / NAME, installation
        self.python = environment_on(installation, environment)
        self.times_ended = 0
        self.processes: dict[int, psutil.Process] = {}
        """All that were seen of it."""

    def go(self, *arguments: str, when: str = "", cause: Cause | None = None) -> str:
        """Begin it, or go on with it; `cause` happens at each line that matches `when`. Returns all that it says."""
        command = [str(self.python), "-m", "orchestration.cli", "train", *arguments]
        if self.times_ended:
            command += ["--resume", str(self.folder)]
        else:
            command += [str(ROOT / "recipes" / "quickstart.toml"), "--runs", str(self.runs)]
            command += [part for setting in SETTINGS for part in ("--set", setting)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )
        said: list[str] = []
        timer = threading.Timer(PATIENCE_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if cause is not None and re.search(when, line):
                    children = psutil.Process(process.pid).children(recursive=True)
                    self.processes |= {child.pid: child for child in children}
                    cause(process)
            self.code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        return "".join(said)

    def end(self, when: str, cause: Cause) -> str:
        """Let it end of a cause; returns the sentence that says so, and why."""
        said = self.go(when=when, cause=cause)
        self.times_ended += 1
        assert self.code == 1, said
        assert not re.search(r"^\s*(Traceback|File )", said, re.MULTILINE), said
        (sentence,) = [line for line in said.splitlines() if line.startswith("the run failed: ")]
        assert f"go on from the last checkpoint with: greenroom train --resume {self.folder}" in said
        self.check_that_nothing_is_left()
        return sentence.removeprefix("the run failed: ")

    def check_that_nothing_is_left(self) -> None:
        """Of Ray's processes, the actors' and their jails', and of cgroups."""
        assert len(self.processes) > 5, "Ray and actors were seen"
        _, alive = psutil.wait_procs(self.processes.values(), timeout=10)
        assert not alive
        assert not list(Path("/sys/fs/cgroup").glob(f"**/*{NAME}*"))
        self.processes = {}

    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """In a file system of its own, with a Python of its own."""
    place = tmp_path_factory.mktemp("ends")
    runs = place / "runs"
    runs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", runs], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Run(runs, own_installation(place / "python"), place / "environment")
    finally:
        subprocess.run(["umount", runs], check=True)


def test_a_sandbox_whose_zygotes_do_not_start_ends_the_run(run: Run) -> None:
    with ExitStack() as mended:
        broken = Broken(run.installation, "encodings/__init__.py", "raise RuntimeError('this image is broken')\n")
        why = run.end("started after", lambda _: mended.enter_context(broken))
    assert "could not be run: The sandbox could not start the program: the jail ended" in why
    assert "this image is broken" in why and "make setup" in why and len(why) < 700
    assert run.summary()["reason"] == why and not run.summary()["finished"]


def test_a_learner_that_can_not_allocate_ends_the_run(run: Run) -> None:
    def limit(process: subprocess.Popen[str]) -> None:
        learner = learner_of(process, run.folder)
        most = learner.memory_info().data + TOO_LITTLE_BYTES
        resource.prlimit(learner.pid, resource.RLIMIT_DATA, (most, most))

    why = run.end("started after", limit)
    assert why.startswith("learner has run out of memory (can't allocate memory: you tried to allocate")
    assert "lower stages.*.optimiser.micro_batch_tokens (it is 40000)" in why
    assert run.summary()["reason"] == why


def test_a_learner_that_the_kernel_kills_at_every_step_ends_the_run(run: Run) -> None:
    hierarchy = cgroup_hierarchy.find_hierarchy()
    if hierarchy is None:
        pytest.skip("this host has no cgroups to limit memory with")
    slot = cgroups.Slot(hierarchy, "test-ends", "learner")
    try:
        slot.prepare(Limits(memory_bytes=TOO_LITTLE_BYTES, processes=10_000))
        # What it has when it has started is charged elsewhere.
        why = run.end("started after|going on", lambda process: slot.move_in(learner_of(process, run.folder).pid))
        assert slot.out_of_memory()
    finally:
        slot.close()
    assert why.startswith("the learner died ")
    assert run.summary()["reason"] == why and run.summary()["deaths"]["learner"] > 1


def test_a_full_disk_ends_the_run_and_with_room_it_goes_on_to_its_end(run: Run) -> None:
    filler = run.runs / "filler"

    def fill(_: subprocess.Popen[str]) -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    why = run.end("sft begins", fill)
    assert why.startswith(str(run.folder)) and "can't be written to (" in why and "No space left on device" in why
    filler.unlink()
    ended = run.times_ended
    said = run.go("--set", SMALLER)
    assert run.code == 0, said
    summary = run.summary()
    assert summary["finished"] and summary["times_resumed"] == ended
    assert [stage["name"] for stage in summary["stages"]][-3:] == ["sft", "rl-1", "rl-2"]
