"""What the sandbox does where the host lacks something: the real thing, on this host made to lack it.

Nothing is silent: calls are refused with what is missing, or run with what is weaker named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from env import cgroup_hierarchy
from env.interpreters import Interpreters
from env.isolation import NO_CGROUP, ONE_USER, IsolationKind
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall
from tests.env.conftest import ISOLATIONS, host_left_as_it_was
from tests.support.lesser_hosts import PROJECT

pytestmark = pytest.mark.slow

CALLS = ("hello", "memory", "less", "forks", "shadow", "network", "cell 1", "cell 2")
both = pytest.mark.parametrize("isolation", ISOLATIONS)


@cache
def on_host(kind: str) -> dict[str, Any]:
    """What is said on a host of a kind (see `tests.support.lesser_hosts`); the test is skipped if it can't be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can make this host lack something")
    with host_left_as_it_was():
        command = [sys.executable, "-m", "tests.support.lesser_hosts", kind]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if "impossible" in said:
        pytest.skip(f"this host can't be made to lack it: {said['impossible']}")
    return said


@both
def test_an_unprivileged_user_gets_what_resource_limits_can_give_and_is_told(isolation: IsolationKind):
    said = on_host("unprivileged")
    assert said["problems"] == []
    # one user for all calls is weaker where jails would else give each its own
    without_cgroup, *others = said[isolation]["weaknesses"]
    assert without_cgroup.startswith(NO_CGROUP)
    assert others == ([ONE_USER] if isolation == "zygote" else [])
    assert_kept_in(said[isolation])


@both
def test_the_root_of_a_user_namespace_does_without_cgroups_and_is_told(isolation: IsolationKind):
    said = on_host("own-root")
    assert said["problems"] == []
    (weakness,) = said[isolation]["weaknesses"]
    assert weakness.startswith(NO_CGROUP)
    assert_kept_in(said[isolation])


@both
@pytest.mark.parametrize(("kind", "why"), [("container", "holds processes"), ("read-only", "is mounted read-only")])
def test_a_container_that_can_make_no_cgroups_is_told_why(kind: str, why: str, isolation: IsolationKind):
    said = on_host(kind)
    assert said["problems"] == []
    (weakness,) = said[isolation]["weaknesses"]
    assert weakness.startswith(NO_CGROUP) and why in weakness
    assert_kept_in(said[isolation])


@both
def test_a_container_has_cgroups_once_what_was_said_is_done(isolation: IsolationKind):
    said = on_host("moved")
    assert said["problems"] == [] and said[isolation]["weaknesses"] == []
    assert_kept_in(said[isolation])


@both
def test_an_unprivileged_user_has_cgroups_where_the_system_gives_users_theirs(isolation: IsolationKind):
    said = on_host("delegated")
    assert said["problems"] == []
    assert said[isolation]["weaknesses"] == ([ONE_USER] if isolation == "zygote" else [])
    assert_kept_in(said[isolation])


def assert_kept_in(said: dict[str, Any]) -> None:
    assert (said["hello"]["status"], said["hello"]["stdout"]) == ("success", "42 True\n")
    assert (said["memory"]["status"], said["less"]["stdout"]) == ("memory", f"{64 << 20}\n"), "the limit is 128 MiB"
    assert "Resource temporarily unavailable" in said["forks"]["stderr"]
    assert "No such file or directory: '/etc/shadow'" in said["shadow"]["stderr"]
    assert "Network is unreachable" in said["network"]["stderr"]
    assert (said["cell 1"]["status"], said["cell 2"]["stdout"]) == ("success", "42\n")


@both
@pytest.mark.parametrize(
    ("kind", "words", "fix"),
    [("no-ids", "map", "--privileged"), ("no-namespaces", "clone", "sysctl -w user.max_user_namespaces")],
)
def test_a_host_that_can_not_isolate_refuses_every_call_and_says_why(
    kind: str, words: str, fix: str, isolation: IsolationKind
):
    said = on_host(kind)
    (problem,) = said["problems"]
    assert words in problem and fix in problem
    for name in CALLS:
        assert said[isolation][name]["status"] == "sandbox_failure", name
        assert words in said[isolation][name]["reason"], name


def version_2() -> cgroup_hierarchy.Hierarchy:
    """A place for cgroups of version 2; the test is skipped if this kernel has none with the controllers."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        if tail.startswith("cgroup2 "):
            place = Path(fields.split()[4])
            there = set((place / "cgroup.controllers").read_text().split())
            if {"memory", "pids"} <= there:
                found = cgroup_hierarchy.find_hierarchy()
                if found is None or found.version != 2:
                    pytest.skip("cgroups of version 2 are there, but none may be made by us")
                return found
            pytest.skip(f"{place} has no memory and pids controllers: they belong to version 1 on this host")
    pytest.skip("this kernel has no cgroups of version 2")


@both
async def test_cgroups_of_version_2_limit_programs_and_sessions(isolation: IsolationKind):
    assert version_2().version == 2
    limits = Limits(wall_seconds=20, memory_bytes=128 << 20)
    pool = Interpreters(limits, workers=1, run_id="tests", isolation=isolation)
    try:
        for tool, session in (({}, ""), ({"tool": JUPYTER_TOOL}, "a")):
            eats = ToolCall(id="1", code="x = b'x' * (1 << 29)", session=session, limits=limits, **tool)
            forks = ToolCall(id="2", code="import os\nwhile True: os.fork()", session=session, limits=limits, **tool)
            assert [(await pool.run(eats)).status, (await pool.run(forks)).status] == ["memory", "error"]
        assert (await pool.describe()).weaknesses == ()
    finally:
        await pool.close()
