"""What the host and a jail of zygotes say to one another: packets, with descriptors, and who sent them.

Invariant: who sent a packet is told by the kernel (SCM_CREDENTIALS, unix(7)), not by the packet.
"""

from __future__ import annotations

import array
import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MESSAGE = 4096
_CREDENTIALS = struct.Struct("3i")
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)


@dataclass(frozen=True)
class Said:
    """One message from a jail."""

    word: str
    numbers: tuple[int, ...]
    text: str
    pid: int
    uid: int
    """Of who sent it, as this process sees them."""
    descriptors: tuple[int, ...]
    """Now ours to close."""


class Link:
    """Our end of a SOCK_SEQPACKET pair; every packet goes to `hear`, the end of the other side to `lose`, once."""

    def __init__(self, hear: Callable[[Said], None], lose: Callable[[str], None]) -> None:
        self._hear, self._lose = hear, lose
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    def say(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Raises `OSError` if the other side is gone."""
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            self._ours.sendmsg([message], [rights])
        else:
            self._ours.send(message)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._ours.recvmsg(_MESSAGE, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
            return
        pid = uid = -1
        descriptors: tuple[int, ...] = ()
        for _, kind, content in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                pid, uid, _ = _CREDENTIALS.unpack(content)
            else:
                descriptors = tuple(memoryview(content).cast("i"))
        if not data and not ancillary:  # an empty packet tells who sent it; the end does not
            self._end("it closed its link")
            return
        word, _, rest = data.decode("ascii", "replace").partition(" ")
        words = rest.split()
        numbers = tuple(map(int, words)) if all(w.lstrip("-").isdecimal() for w in words) else ()
        self._hear(Said(word, numbers, rest, pid, uid, descriptors))

    def _end(self, why: str) -> None:
        """There is nothing more to come; the loop would tell of that for ever."""
        self._loop.remove_reader(self._ours)
        self._lose(why)

    def turn_to(self, hear: Callable[[Said], None]) -> None:
        """From now on somebody else is told."""
        self._hear = hear

    def close(self) -> None:
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()
