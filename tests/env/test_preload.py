"""Which zygote a call goes to, and where its memory can be made of huge pages."""

from __future__ import annotations

import pytest

from env.huge_pages import HUGE, huge_places
from env.preload import LIBRARIES, named_in


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (b"print(1)", ()),
        (b"import numpy as np", ("numpy",)),
        (b"from sympy import *\nimport numpy", ("numpy", "sympy")),
        (b"numpyish = my_sympy = 1", ()),
        (b"import pandas; import scipy.stats", ("scipy", "pandas")),
        (b"import matplotlib.pyplot as plt, numpy as np", ("numpy", "matplotlib")),
    ],
)
def test_libraries_are_found_by_their_names(code: bytes, named: tuple[str, ...]):
    assert named_in(code, LIBRARIES) == named


def test_without_libraries_nothing_is_named():
    assert named_in(b"import numpy", ()) == ()


def test_huge_places_lie_wholly_in_private_writable_memory_without_a_file():
    maps = "\n".join(
        f"{start:x}-{end:x} {rights} 00000000 00:00 0 {name}"
        for start, end, rights, name in (
            (HUGE - 4096, 3 * HUGE + 4096, "rw-p", ""),
            (4 * HUGE, 5 * HUGE, "rw-p", "[heap]"),
            (6 * HUGE, 7 * HUGE, "r--p", ""),
            (8 * HUGE, 9 * HUGE, "rw-s", ""),
            (10 * HUGE, 11 * HUGE, "rw-p", "/usr/lib/libc.so.6"),
            (12 * HUGE, 13 * HUGE, "rw-p", "[stack]"),
            (14 * HUGE, 15 * HUGE - 1, "rw-p", ""),
        )
    )
    assert huge_places(maps) == [HUGE, 2 * HUGE, 4 * HUGE]
