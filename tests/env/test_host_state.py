"""A look at the host sees what the sandbox has there, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from env import cgroup_hierarchy
from env.host_state import HostState, sandbox_processes
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall
from tests.env.conftest import descendants
from tests.env.notebooks import namespace
from tests.support.waiting import until

SLEEPS = ToolCall(id="a", code="import time; time.sleep(60)", limits=Limits(wall_seconds=60))


async def test_a_running_call_is_seen_and_gone_after_it():
    interpreters = Interpreters(SLEEPS.limits, workers=1, run_id="tests-host-state")
    try:
        await interpreters.run(ToolCall(id="first", code="1"))
        before = HostState.now()
        running = asyncio.create_task(interpreters.run(SLEEPS))
        await until(lambda: "processes" in before.differences(HostState.now()))
        await until(lambda: {"jail", "init", "zygote", "program"} == {each.role for each in sandbox_processes()})
        assert "mounts" not in before.differences(HostState.now())
        if cgroup_hierarchy.find_hierarchy() is not None:
            assert HostState.now().cgroups
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: not before.differences(HostState.now()))
    finally:
        await interpreters.close()
    assert (HostState.now().processes, HostState.now().cgroups) == (frozenset(), frozenset())


def test_other_children_are_not_the_sandboxs():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid not in {each.pid for each in sandbox_processes()}
    finally:
        child.communicate()


def test_a_process_that_is_gone_has_none():
    child = subprocess.Popen(["true"])
    child.wait()
    assert sandbox_processes(child.pid) == []
    assert descendants({child.pid}) == frozenset() and namespace(child.pid, "pid") == ""
    assert sandbox_processes(os.getpid()) == []
