"""Where new objects lie after the holes of a heap have been filled; each case in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SMALL = """
old = [bytes(100) for _ in range(20_000)]
del old[::40]
"""
LARGE = """
old = [bytes(3000) for _ in range(20_000)]
del old[::40]
"""


def pages_of_new_objects(holes: str, size: int, prepare: str) -> int:
    """How many pages 60 new objects of `size` bytes begin in, in a heap with `holes` after `prepare`."""
    code = f"from env import forked_heap\n{holes}\n{prepare}\nnew = [bytes({size}) for _ in range(60)]\n"
    code += "print(len({id(one) >> 12 for one in new}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(("holes", "size", "needed"), [(SMALL, 100, 3), (LARGE, 3000, 46)])
def test_new_objects_lie_together_once_holes_are_filled(holes: str, size: int, needed: int):
    scattered = pages_of_new_objects(holes, size, "")
    together = pages_of_new_objects(holes, size, "forked_heap.fill_holes()")
    assert together <= needed < scattered


def test_filling_holes_costs_little_more_memory_than_the_holes():
    code = "from env import forked_heap\nimport resource\n"
    code += "old = [bytes(n) for n in range(8, 3000) for _ in range(9)]\ndel old[::4]\n"
    code += "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nforked_heap.fill_holes()\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2048, "KiB"


def test_immortal_objects_still_change_and_what_they_held_is_still_dropped():
    code = "from env import forked_heap\nimport gc, sys, weakref\n"
    code += "class Thing: pass\nheld = {'a': [1]}\ngc.collect()\nforked_heap.make_immortal([held])\ngc.freeze()\n"
    code += "assert sys.getrefcount(held) == sys.getrefcount(held['a']) == sys.getrefcount(None)\n"
    code += "held['a'].append(2)\nthing = held['b'] = Thing()\nweakref.finalize(thing, print, 'dropped')\n"
    code += "del thing, held['b']\nprint(held)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "dropped\n{'a': [1, 2]}\n"
