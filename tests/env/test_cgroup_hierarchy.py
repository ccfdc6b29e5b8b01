"""Where cgroups are looked for, and what is said where none can be made."""

from __future__ import annotations

import os
from pathlib import Path

from env.cgroup_hierarchy import FOLDER, Hierarchy, find_hierarchy, memory_left, obstacle, tasks_left


def _mountinfo(tmp_path: Path, *mounts: tuple[Path, str, str]) -> Path:
    """A mountinfo file; a mount is (place, kind, options)."""
    lines = [
        f"30 20 0:{n} / {place} rw,relatime - {kind} {kind} rw,{options}"
        for n, (place, kind, options) in enumerate(mounts)
    ]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return file


def _own(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "cgroup"
    file.write_text(text)
    return file


def test_version_one_has_a_hierarchy_for_each_controller(tmp_path: Path):
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    mounts = _mountinfo(
        tmp_path,
        (tmp_path / "memory", "cgroup", "memory"),
        (tmp_path / "pids", "cgroup", "pids"),
        (tmp_path, "tmpfs", "x"),
    )
    found = find_hierarchy(mounts, _own(tmp_path, "4:memory:/a\n3:pids:/a\n"))
    assert found == Hierarchy(1, tmp_path / "memory", tmp_path / "pids")


def test_version_two_is_used_where_its_controllers_are_handed_on(tmp_path: Path):
    """The root is a container's that holds processes, so that it can hand on nothing; the slice below does."""
    root, slice_ = tmp_path / "unified", tmp_path / "unified" / "user.slice"
    (slice_ / "session.scope").mkdir(parents=True)
    (slice_ / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (slice_ / FOLDER).mkdir()
    (slice_ / FOLDER / "cgroup.subtree_control").write_text("memory pids\n")
    (root / "cgroup.subtree_control").mkdir()  # can't be read or written, like one that gives EBUSY
    mounts = _mountinfo(tmp_path, (root, "cgroup2", "nsdelegate"))
    found = find_hierarchy(mounts, _own(tmp_path, "0::/user.slice/session.scope\n"))
    assert found == Hierarchy(2, slice_, slice_)


def test_a_host_without_controllers_has_none(tmp_path: Path):
    (tmp_path / "unified").mkdir()
    mounts = _mountinfo(tmp_path, (tmp_path / "unified", "cgroup2", "x"), (tmp_path / "gone", "cgroup", "memory"))
    assert find_hierarchy(mounts, _own(tmp_path, "0::/\n")) is None


def _said(tmp_path: Path, *mounts: tuple[Path, str, str], own: str = "0::/box\n") -> str:
    mountinfo, cgroup = _mountinfo(tmp_path, *mounts), _own(tmp_path, own)
    assert find_hierarchy(mountinfo, cgroup) is None
    return obstacle(mountinfo, cgroup)


def test_a_host_without_a_cgroup_file_system_is_told_so(tmp_path: Path):
    assert "no cgroup file system" in _said(tmp_path, (tmp_path, "tmpfs", "x"))
    assert "no cgroup file system" in _said(tmp_path, (tmp_path, "cgroup", "memory"))  # and none for pids


def test_a_controller_that_the_kernel_lacks_is_named(tmp_path: Path):
    (tmp_path / "cgroup.controllers").write_text("cpu io pids\n")
    assert _said(tmp_path, (tmp_path, "cgroup2", "x")) == f"{tmp_path} lacks the controllers memory"


def test_a_place_that_can_not_be_read_is_named(tmp_path: Path):
    assert "can't be read: No such file" in _said(tmp_path, (tmp_path / "gone", "cgroup2", "x"))


def test_processes_in_the_way_can_be_moved_as_the_message_says(tmp_path: Path):
    """A kernel would also take away what is written to cgroup.procs; the lesser hosts' tests try the real thing."""
    box = tmp_path / "box"
    (box / "cgroup.subtree_control").mkdir(parents=True)  # can't be written, like one that gives EBUSY
    (tmp_path / "cgroup.subtree_control").mkdir()
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    (box / "cgroup.procs").write_text("17\n")
    said = _said(tmp_path, (tmp_path, "cgroup2", "x"))
    assert said.startswith(f"{box} holds processes")
    assert os.waitstatus_to_exitcode(os.system(said.split("`")[1])) == 0
    assert (box / "init" / "cgroup.procs").read_text() == "17\n"


def test_version_one_is_for_those_who_may_write_there(tmp_path: Path):
    places = [(tmp_path / "proc" / name, "cgroup", name) for name in ("memory", "pids")]
    said = _said(tmp_path, *places, own="4:memory:/\n3:pids:/\n")
    assert said == f"in {places[0][0]} and {places[1][0]} only the machine's root may"


MIB = 1 << 20


def _cgroup(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / f"memory.{name}").write_text(text + "\n")


def test_the_tightest_limit_around_this_process_says_what_memory_is_left(tmp_path: Path):
    root = tmp_path / "unified"
    figures = f"anon {900 * MIB}\nactive_file {20 * MIB}\ninactive_file {80 * MIB}"
    _cgroup(root)  # has no limit, and no file for one
    _cgroup(root / "box", max=str(2048 * MIB), current=str(1000 * MIB), stat=figures)
    _cgroup(root / "box" / "unit", max="max", current=str(1000 * MIB), stat=figures)
    mounts = _mountinfo(tmp_path, (root, "cgroup2", "x"))
    own = _own(tmp_path, "0::/box/unit\n")
    assert memory_left(mounts, own) == (2048 - 1000 + 20 + 80) * MIB
    (root / "box" / "unit" / "memory.max").write_text(f"{1200 * MIB}\n")
    assert memory_left(mounts, own) == (1200 - 1000 + 20 + 80) * MIB


def test_version_one_s_limit_counts_too_and_none_is_none(tmp_path: Path):
    root = tmp_path / "memory"
    figures = f"inactive_file 5\ntotal_active_file {MIB}\ntotal_inactive_file {MIB}"
    limits = {"usage_in_bytes": str(64 * MIB), "stat": figures}
    _cgroup(root, limit_in_bytes=str((1 << 63) - 4096), **limits)
    mounts = _mountinfo(tmp_path, (root, "cgroup", "memory"), (tmp_path / "unified", "cgroup2", "x"))
    own = _own(tmp_path, "4:memory:/box\n0::/\n")
    assert memory_left(mounts, own) is None
    _cgroup(root / "box", limit_in_bytes=str(100 * MIB), **limits)
    assert memory_left(mounts, own) == (100 - 64 + 2) * MIB
    assert memory_left(_mountinfo(tmp_path, (tmp_path, "tmpfs", "x")), own) is None


def test_processes_that_are_left_are_those_of_the_tightest_limit(tmp_path: Path):
    root = tmp_path / "unified"
    (root / "box").mkdir(parents=True)
    for place, most, used in ((root, "max", 900), (root / "box", "200", 150)):
        (place / "pids.max").write_text(f"{most}\n")
        (place / "pids.current").write_text(f"{used}\n")
    mounts = _mountinfo(tmp_path, (root, "cgroup2", "x"))
    assert tasks_left(mounts, _own(tmp_path, "0::/box\n")) == 50
    assert tasks_left(mounts, _own(tmp_path, "0::/\n")) is None
