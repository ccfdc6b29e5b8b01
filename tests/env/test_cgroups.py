"""What a call's cgroup does, and what is left of it."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from env import cgroup_hierarchy, cgroups
from env.tool_call import Limits

REAL = cgroup_hierarchy.find_hierarchy()
needs_cgroups = pytest.mark.skipif(REAL is None, reason="this host lets us make no cgroups")


def _slot_folders(slot: cgroups.Slot) -> list[Path]:
    return [folder for folder in slot._folders if folder.exists()]


@needs_cgroups
def test_a_slot_is_gone_after_close_with_whatever_ran_in_it():
    assert REAL is not None
    slot = cgroups.Slot(REAL, "tests", "close")
    slot.prepare(Limits())
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        slot.enter_thread()
        children.append(subprocess.Popen(["sleep", "30"]))
        slot.add(children[0].pid)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert slot.holds(children[0].pid) and not slot.holds(os.getpid())
    reaper = threading.Thread(target=children[0].wait)
    reaper.start()
    slot.close()
    reaper.join(10)
    assert children[0].returncode == -9
    assert _slot_folders(slot) == []


@needs_cgroups
def test_a_slot_can_be_made_after_the_last_one_is_gone_with_all_that_it_was_in():
    """On v2 the folder that was made anew handed on no controllers."""
    assert REAL is not None
    for _ in range(2):
        slot = cgroups.Slot(REAL, "tests", "again")
        slot.prepare(Limits())
        slot.close()
        assert _slot_folders(slot) == []


@needs_cgroups
def test_sweeping_takes_what_dead_processes_of_any_run_left_and_nothing_else():
    assert REAL is not None
    ours, gone, namespace = cgroups.Slot(REAL, "swept", "0"), 2**22 + 1, os.stat("/proc/self/ns/pid").st_ino
    dead = [f"{run}@{gone}-12345-{namespace}" for run in ("swept", "another-run")]
    elsewhere = f"swept@{gone}-12345-{namespace + 1}"
    places = [folder / cgroup_hierarchy.FOLDER for folder in REAL.folders]
    try:
        for place in places:
            for owner in (*dead, elsewhere):
                (place / owner / "0").mkdir(parents=True)
        cgroups.sweep(REAL)
        assert not any((place / owner).exists() for place in places for owner in dead)
        assert all((place / elsewhere / "0").exists() for place in places), "pids mean other processes there"
        assert len(_slot_folders(ours)) == len(places)
    finally:
        for place in places:
            for owner in (*dead, elsewhere):
                for folder in (place / owner / "0", place / owner):
                    if folder.exists():
                        folder.rmdir()
        ours.close()


def test_run_ids_of_any_kind_make_directory_names():
    name = cgroups._owner_name("a/b@c d", os.getpid())
    assert name.partition("@")[0] == "a_b_c_d" and "/" not in name


@needs_cgroups
def test_a_call_at_its_limit_is_not_swapped_out():
    assert REAL is not None
    slot = cgroups.Slot(REAL, "tests", "swap")
    try:
        slot.prepare(Limits())
        (memory,) = (REAL.memory / cgroup_hierarchy.FOLDER).glob("tests@*/swap")
        swap = memory / ("memory.swappiness" if REAL.version == 1 else "memory.swap.max")
        if not swap.exists():
            pytest.skip("this kernel does not account for swap")
        assert swap.read_text() == "0\n"
    finally:
        slot.close()


@pytest.mark.parametrize("text", [b"7\n", b"low 1\nhigh 2\nmax 7\noom 3\noom_kill 4\noom_group_kill 0\n"])
def test_how_often_a_cgroup_was_at_its_limit_is_read_of_both_versions(text: bytes):
    """cgroups-v1/memory.rst, failcnt; cgroup-v2.rst, memory.events."""
    assert cgroups.refusals(text) == 7
