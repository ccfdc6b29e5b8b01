"""Who is below a process, by what the kernel says."""

from __future__ import annotations

import subprocess
import sys

import psutil

from env.jail_processes import below, children_of

STARTS_BY_A_THREAD = """
import subprocess, threading
def start():
    child = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    print(child.pid, child.stdout.readline(), flush=True)
    child.wait()
threading.Thread(target=start).start()
"""


def test_all_below_a_process_are_found_whichever_thread_has_started_them_parents_first():
    parent = subprocess.Popen([sys.executable, "-c", STARTS_BY_A_THREAD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, grandchild = map(int, parent.stdout.readline().split())
    try:
        assert below(parent.pid) == [child, grandchild]
        assert below(child) == children_of(child) == [grandchild]
        assert below(grandchild) == []
    finally:
        for pid in (child, grandchild):
            psutil.Process(pid).kill()
        parent.communicate()
    assert below(parent.pid) == [], "it is gone"
