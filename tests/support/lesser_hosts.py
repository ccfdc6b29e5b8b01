"""Runs the sandbox where this host is made to lack something, and prints what it says there, as JSON.

    python -m tests.support.lesser_hosts KIND

Needs root. What is done to the host is seen by this process and those that it starts only. Kinds:
- `unprivileged`: an ordinary user, who may make user namespaces;
- `own-root`: root of a user namespace with ids of its own, as in a rootless container;
- `no-ids`: root of a user namespace that has no ids to give;
- `no-namespaces`: root of a user namespace in which no more may be made;
- `delegated`: an ordinary user who has been given a cgroup, as systemd gives its users theirs;
- `container`: root of a cgroup namespace that holds processes, as in a privileged container;
- `moved`: the same, after what is said there has been done;
- `read-only`: the same, with cgroups mounted read-only, as in other containers.

The last four need cgroups of version 2.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
USER = 54321
FIRST_ID, IDS = 200_000, 65_536
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 4096, 16384, 1 << 18
_MNT_DETACH = 2
CGROUPS = Path("/sys/fs/cgroup")
CONTAINERS = ("container", "moved", "read-only")
IN_A_CGROUP = ("delegated", *CONTAINERS)


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}")


def open_private_folders() -> None:
    """Let everybody reach interpreter, packages and project, wherever they lie. Other mounts of ours are not seen."""
    os.unshare(os.CLONE_NEWNS)
    mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE)
    needed = {Path(sys.base_prefix).resolve(), PROJECT.resolve()}
    needed |= {(PROJECT / name).resolve() for name in (".venv", ".sandbox")}
    private = {next(up for up in reversed(path.parents) if not up.stat().st_mode & 1): path for path in needed
               if any(not up.stat().st_mode & 1 for up in path.parents)}  # fmt: skip
    for folder in private:
        inside = [path for path in needed if path.is_relative_to(folder)]
        handles = [os.open(path, os.O_PATH) for path in inside]
        mount("none", folder, "tmpfs", 0, "mode=755")
        for path, handle in zip(inside, handles, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{handle}", path, "", _MS_BIND | _MS_REC)
            os.close(handle)


def enter_user_namespace(mapping: str) -> None:
    """`mapping` as in user_namespaces(7); written from outside, by a child that stays there."""
    ours, theirs = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.read(ours, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{os.getppid()}/{name}").write_text(mapping)
        os._exit(0)
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
    os.write(theirs, b"!")
    os.waitpid(writer, 0)
    for descriptor in (ours, theirs):
        os.close(descriptor)
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)


@contextmanager
def given_cgroup() -> Iterator[Path]:
    """A cgroup of version 2 with memory and pids controllers, of the ordinary user. Raises `OSError` without them."""
    there = (CGROUPS / "cgroup.controllers").read_text().split()  # no such file: something else is mounted there
    if not {"memory", "pids"} <= set(there):
        raise OSError(f"{CGROUPS} has the controllers {there}")
    (CGROUPS / "cgroup.subtree_control").write_text("+memory +pids")
    given = CGROUPS / "tests-given"
    given.mkdir()
    for path in (given, given / "cgroup.procs", given / "cgroup.subtree_control"):
        os.chown(path, USER, USER)
    try:
        yield given
    finally:
        for folder in (*sorted(given.rglob("*/"), reverse=True), given):
            remove(folder)


def remove(cgroup: Path) -> None:
    """What has ended in it is still there for a moment."""
    for _ in range(100):
        try:
            return cgroup.rmdir()
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{cgroup} could not be removed")


def enter_container(kind: str) -> None:
    """A cgroup namespace whose root is the cgroup that this process is in, as a container has it."""
    os.unshare(os.CLONE_NEWCGROUP | os.CLONE_NEWNS)
    mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE)
    ctypes.CDLL(None).umount2(str(CGROUPS).encode(), _MNT_DETACH)
    mount("none", CGROUPS, "cgroup2", _MS_RDONLY if kind == "read-only" else 0)
    if kind == "moved":
        from env.cgroup_hierarchy import obstacle

        subprocess.run(obstacle().split("`")[1], shell=True, check=True)


def become(kind: str) -> None:
    """Make this process live on a lesser host. Raises `OSError` where this host can't."""
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", HOME="/nonexistent")
    if kind in CONTAINERS:
        enter_container(kind)
        return
    open_private_folders()
    if kind in ("unprivileged", "delegated"):
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    elif kind == "no-ids":
        enter_user_namespace(f"0 {FIRST_ID} 1")
    else:
        enter_user_namespace(f"0 {FIRST_ID} {IDS}")
    if kind == "no-namespaces":
        Path("/proc/sys/user/max_user_namespaces").write_text("0")


async def say() -> dict[str, Any]:
    """What the sandbox does here: `problems` (of `check_host`), and for each isolation results and weaknesses."""
    from env.interpreters import Interpreters
    from env.preflight import check_host
    from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult
    from tests.env.conftest import ISOLATIONS

    said: dict[str, Any] = {"problems": [f"{problem}" for problem in await asyncio.to_thread(check_host)]}
    limits = Limits(wall_seconds=20.0, memory_bytes=128 << 20, processes=8)
    for isolation in ISOLATIONS:
        pool = Interpreters(limits, workers=1, run_id="lesser-host", isolation=isolation)

        async def run(name: str, code: str, tool: str = "", pool: Interpreters = pool) -> ToolResult:
            given: dict[str, Any] = {"tool": JUPYTER_TOOL, "session": "a"} if tool else {}
            return await pool.run(ToolCall(id=name, code=code, limits=limits, **given))

        results = {
            "hello": await run("hello", "import os; print(6 * 7, os.getpid() > 1)"),
            "memory": await run("memory", "x = bytearray(192 << 20)"),
            "less": await run("less", "print(len(bytearray(64 << 20)))"),
            "forks": await run("forks", "import os\nfor _ in range(200): os.fork() or os._exit(0)\nprint('all')"),
            "shadow": await run("shadow", "open('/etc/shadow').read()"),
            "network": await run("network", "import socket; socket.create_connection(('1.1.1.1', 53), 1)"),
            "cell 1": await run("cell 1", "x = 6", "cell"),
            "cell 2": await run("cell 2", "print(x * 7)", "cell"),
        }
        try:
            weaknesses = list((await pool.describe()).weaknesses)
        except OSError as error:
            weaknesses = [f"OSError: {error}"]
        await pool.close()
        said[isolation] = {"weaknesses": weaknesses, **{name: result.model_dump() for name, result in results.items()}}
    return said


def on_host(kind: str) -> str:
    """What `say` says there, as JSON."""
    try:
        become(kind)
    except OSError as error:
        return json.dumps({"impossible": f"{error}"})
    code = "import asyncio, json; from tests.support.lesser_hosts import say; print(json.dumps(asyncio.run(say())))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def in_a_cgroup(kind: str) -> str:
    """As `on_host`, by a child that has a cgroup to itself."""
    try:
        with given_cgroup() as given:
            inside = given / "inside" if kind == "delegated" else given
            inside.mkdir(exist_ok=True)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    (inside / "cgroup.procs").write_text(str(os.getpid()))
                    os.write(writing, on_host(kind).encode())
                    os._exit(0)
                finally:  # it failed
                    traceback.print_exc()
                    os._exit(1)
            os.close(writing)
            with open(reading) as said:
                text = said.read()
            _, status = os.waitpid(child, 0)
            assert status == 0, "the child has said why on stderr"
            return text
    except OSError as error:
        return json.dumps({"impossible": f"cgroups of version 2: {error}"})


def main() -> None:
    kind = sys.argv[1]
    print(in_a_cgroup(kind) if kind in IN_A_CGROUP else on_host(kind))


if __name__ == "__main__":
    main()
