"""What is stored is known again, at a few bytes each."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from actors.storage.fingerprints import LEAST_FRESH, Fingerprints

KEYS = st.tuples(st.sampled_from([f"rl/{step}/0/0" for step in range(9)]), st.integers(0, 3) | st.just(0xFFFFFFFF))


@given(st.lists(KEYS), st.lists(st.tuples(st.booleans(), KEYS), max_size=60))
def test_it_is_a_set(before: list[tuple[str, int]], later: list[tuple[bool, tuple[str, int]]]) -> None:
    prints, plain = Fingerprints(before), set(before)
    for adds, key in later:
        assert (key in prints) == (key in plain)
        if adds:
            prints.add(*key)
            plain.add(key)
        assert len(prints) == len(plain)


def test_many_take_sixteen_bytes_each_at_most_and_all_are_found() -> None:
    prints, count = Fingerprints(), 20 * LEAST_FRESH
    tracemalloc.start()
    try:
        for number in range(count):
            prints.add(f"rl/{number // 64}/{number % 64}", number)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prints) == count and held < 16 * count
    assert all((f"rl/{number // 64}/{number % 64}", number) in prints for number in range(count))
    assert not any((f"rl/{number // 64}/{number % 64}", number + 1) in prints for number in range(count))
