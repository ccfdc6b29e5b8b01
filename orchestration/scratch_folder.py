"""A temporary folder that no signal makes anybody forget."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder where the system keeps temporary files, which is deleted at the end.

    For work that signals end by an exception: `tempfile.TemporaryDirectory` forgets the folder if the exception comes
    right after it was made, and leaves the rest of it if one comes while it is being deleted.
    """
    with ExitStack() as undo:
        with _signals_held_back():
            folder = Path(tempfile.mkdtemp(prefix=prefix))
            undo.callback(_delete, folder)
        yield folder


def _delete(folder: Path) -> None:
    with _signals_held_back():
        shutil.rmtree(folder)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """What comes meanwhile is handled afterwards.

    By handlers, since a mask would be that of this thread alone: a signal that another one takes is handled here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread, and lets no other one change how
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in HELD_BACK}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
