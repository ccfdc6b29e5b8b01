"""What nsjail is told."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

from env.cgroup_hierarchy import find_hierarchy
from env.image import Image
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.jail import inodes, jail_config, root_of
from env.tool_call import Limits, ToolCall
from env.user_ids import NOBODY
from tests.env.conftest import ISOLATIONS

IMAGE = Image()


def config(limits: Limits | None = None, *, cgroup: bool = True, staged_root: Path | None = Path("/s")) -> str:
    return jail_config(IMAGE, limits or Limits(), staged_root=staged_root, cgroup=cgroup)


def test_root_is_never_mapped_to_root(monkeypatch: pytest.MonkeyPatch):
    for host_id, outside in ((0, "65534"), (1000, "1000")):
        monkeypatch.setattr(os, "geteuid", lambda host_id=host_id: host_id)
        monkeypatch.setattr(os, "getegid", lambda host_id=host_id: host_id)
        ids = re.findall(r'inside_id: "(\d+)"\s+outside_id: "(\d+)"', config())
        assert ids == [("65534", outside)] * 2


@pytest.mark.parametrize(
    "unsafe", ["keep_caps", "keep_env", "disable_no_new_privs", "disable_rl", "clone_newuser: false"]
)
def test_nothing_is_kept_that_nsjail_would_take_away(unsafe: str):
    assert unsafe not in config()


@pytest.mark.parametrize("namespace", ["net", "user", "ns", "pid", "ipc", "uts"])
def test_every_namespace_is_new(namespace: str):
    assert f"clone_new{namespace}: false" not in config()


def test_nothing_but_the_scratch_directory_is_writable():
    for staged_root in (None, Path("/s")):
        text = config(staged_root=staged_root)
        mounts = re.findall(r"mount \{(.*?)\n\}", text, re.DOTALL)
        writable = [mount for mount in mounts if "rw: true" in mount]
        assert len(writable) == 1 and 'dst: "/tmp"' in writable[0] and "size=" in writable[0]


def test_the_root_holds_no_home_no_proc_and_no_shell():
    targets = [bind.target for bind in root_of(IMAGE).binds] + [link for _, link in root_of(IMAGE).links]
    for target in targets:
        assert target.startswith(("/opt/", "/lib", "/usr/lib", "/dev/")), target


def test_without_a_cgroup_resource_limits_stand_in():
    limits = Limits(memory_bytes=200 << 20, processes=7)
    bare, grouped = config(limits, cgroup=False), config(limits)
    assert "rlimit_as: 456" in bare and "rlimit_nproc: 9" in bare and f'arg: "{232 << 20}"' in bare
    assert "rlimit_as: 456" not in grouped and "rlimit_nproc:" not in grouped
    assert len(re.findall("arg: ", bare)) - len(re.findall("arg: ", grouped)) == 1


def test_small_scratch_directories_still_hold_some_files():
    assert inodes(Limits(scratch_bytes=4096)) == 64
    assert inodes(Limits(scratch_bytes=1 << 40)) == 4096


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_limits_are_what_the_program_sees(isolation: IsolationKind):
    code = """
import os, resource
for name in ("CORE", "FSIZE", "NOFILE", "STACK", "MEMLOCK", "MSGQUEUE", "RTPRIO"):
    print(name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1])
disk = os.statvfs("/tmp")
print(disk.f_blocks * disk.f_frsize, disk.f_files)
print(os.getuid() == os.getgid() != 0, os.getgroups(), os.uname().nodename)
print(os.nice(0), resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_DATA)[1])
"""
    pool = Interpreters(Limits(), workers=1, isolation=isolation)
    try:
        result = await pool.run(ToolCall(id="a", code=code))
    finally:
        await pool.close()
    mib = 1 << 20
    shown, _, last = result.stdout.removesuffix("\n").rpartition("\n")
    # Only root may drop groups; in the jail all of them are nobody's.
    groups = [] if os.geteuid() == 0 else [NOBODY] * len(os.getgroups())
    assert shown == (
        f"CORE 0\nFSIZE {32 * mib}\nNOFILE 256\nSTACK {8 * mib}\n"
        "MEMLOCK 0\nMSGQUEUE 0\nRTPRIO 0\n"
        f"{16 * mib} 4096\nTrue {groups} sandbox"
    ), result
    nice, address_space, data = map(int, last.split())
    assert nice in (0, os.nice(0))
    inherited = 64 * mib if isolation == "zygote" else 0
    wanted = (4 * 512 + 4096) * mib if find_hierarchy() is not None else (512 + 256) * mib
    assert 0 <= address_space - wanted <= inherited
    if find_hierarchy() is not None:
        assert data == resource.getrlimit(resource.RLIMIT_DATA)[1], "cgroups count what is touched"
    else:
        assert 0 <= data - (512 + 32) * mib <= inherited
