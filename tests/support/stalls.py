"""What other work on a machine takes from this process, so that a bound on time says something about the code."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_NAP_S = 0.02


@dataclass
class Stalls:
    """How long this process, or all of the machine, has been kept from running; known when it is over."""

    seconds: float = 0.0


@contextmanager
def stalls() -> Iterator[Stalls]:
    """Measured by a thread that takes one nap after the other: what they take too long."""
    seen, over = Stalls(), threading.Event()

    def nap() -> None:
        while not over.is_set():
            begun = time.monotonic()
            over.wait(_NAP_S)
            seen.seconds += max(0.0, time.monotonic() - begun - _NAP_S)

    thread = threading.Thread(target=nap)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
