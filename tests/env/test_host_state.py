"""A look at the host sees what the sandbox has there, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from env import cgroups
from env.host_state import HostState, sandbox_processes
from env.interpreters import Interpreters
from env.tool_call import Limits, ToolCall
from tests.env.conftest import until


async def test_a_running_call_is_seen_and_gone_after_it():
    before = HostState.now()
    interpreters = Interpreters(Limits(wall_seconds=60), workers=1, run_id="tests-host-state")
    try:
        running = asyncio.create_task(interpreters.run(ToolCall(id="a", code="import time; time.sleep(60)")))
        await until(lambda: {each.role for each in sandbox_processes()} == {"jail", "init", "program"})
        changed = before.differences(HostState.now()).keys()
        assert {"processes", "descriptors"} <= changed
        assert ("cgroups" in changed) == (cgroups.find_hierarchy() is not None)
        assert "mounts" not in changed
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await interpreters.close()
    assert before.differences(HostState.now()) == {}


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
    assert sandbox_processes(os.getpid()) == []
