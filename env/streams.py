"""What passes between this process and a jail: immutable memory one way, capped pipes the other.

Invariants:
- what a jail is given in memory it can neither change nor grow;
- a pipe is read without waiting, and a flood costs no memory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

_CHUNK = 1 << 16


def sealed(name: str, content: bytes) -> int:
    """A descriptor of immutable memory with this content, at offset 0.

    It can't be grown or written through by the process that gets it.
    """
    descriptor = os.memfd_create(f"greenroom-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Stream:
    """A pipe from the jail, read without waiting and kept up to a cap."""

    def __init__(self, cap: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.kept = bytearray()
        self.cap = cap
        self.truncated = False
        self.closed = False

    def read(self) -> bool:
        """Take what is there; returns whether there may be more to come."""
        try:
            chunk = os.read(self.reader, _CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            self.closed = True
            return False
        room = self.cap - len(self.kept)
        self.kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room
        return True

    def watch(self, flooded: Callable[[], None]) -> None:
        """Take what comes, as it comes; `flooded` is called, once, when that is more than the cap."""
        asyncio.get_running_loop().add_reader(self.reader, self._on_readable, flooded)

    def _on_readable(self, flooded: Callable[[], None]) -> None:
        if not self.read():
            self.unwatch()
        elif self.truncated:
            self.unwatch()
            flooded()

    def unwatch(self) -> None:
        asyncio.get_running_loop().remove_reader(self.reader)

    def drain(self) -> None:
        """Take what is left after the jail's end, but no more than shows whether the cap was passed."""
        while not self.closed and not self.truncated:
            before = len(self.kept)
            if not self.read() or (len(self.kept) == before and not self.truncated):
                return

    def restart(self, cap: int) -> None:
        """Keep what comes from now on, up to another cap."""
        self.kept.clear()
        self.cap, self.truncated = cap, False

    @classmethod
    def several(cls, *caps: int) -> list[Stream]:
        """One for each cap, or none. Raises `OSError` if the host lacks descriptors."""
        made: list[Stream] = []
        try:
            for cap in caps:
                made.append(cls(cap))
        except OSError:
            for stream in made:
                stream.close()
            raise
        return made

    def close_writer(self) -> None:
        """Our copy of the end that the jail writes to; then the jail's end of it tells of the jail's end."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
