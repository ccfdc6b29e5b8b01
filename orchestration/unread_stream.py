"""A stream for what need not be read: the work goes on when it can't be written."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO


class UnreadStream(io.TextIOBase):
    """Writes to `stream` for as long as that takes it; when it no longer does, that is said once on standard error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._taken = stream, True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  (rich chooses its lines by it)
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._taken:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if self._taken:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._taken = False
        if error.errno in (errno.EPIPE, errno.EIO):  # nobody reads: at its end the interpreter must not try again
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        with suppress(OSError):  # it may be the same terminal
            why = error.strerror or error
            print(f"nothing more is shown, and the work goes on: {why}", file=sys.stderr, flush=True)
