"""Runs the sandbox where this host is made to lack something, and prints what it says there, as JSON.

    python -m tests.support.lesser_hosts KIND

Needs root. What is done to the host is seen by this process and those that it starts only. Kinds:
- `unprivileged`: an ordinary user, who may make user namespaces;
- `own-root`: root of a user namespace with ids of its own, as in a rootless container;
- `no-ids`: root of a user namespace that has no ids to give;
- `no-namespaces`: root of a user namespace in which no more may be made.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
USER = 54321
FIRST_ID, IDS = 200_000, 65_536
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
KINDS = ("unprivileged", "own-root", "no-ids", "no-namespaces")


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


def become(kind: str) -> None:
    """Make this process live on a lesser host. Raises `OSError` where this host can't."""
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", HOME="/nonexistent")
    open_private_folders()
    if kind == "unprivileged":
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
            "memory": await run("memory", "x = bytearray(800 << 20)"),
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


def main() -> None:
    try:
        become(sys.argv[1])
    except OSError as error:
        print(json.dumps({"impossible": f"{error}"}))
        return
    code = "import asyncio, json; from tests.support.lesser_hosts import say; print(json.dumps(asyncio.run(say())))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
