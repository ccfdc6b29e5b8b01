"""What virtual time has no place for is refused: threads, executors, sockets, child processes.

Invariants:
- what reaches for them through the loop raises `NotVirtual`, and so does what reaches for them behind its back, in the
  loop's own thread while it runs;
- other threads, and this one before and after, are left alone.

Behind the back means an audit hook, which can't be taken away again: it is added once, and looks whether a loop runs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_FORBIDDEN_EVENTS = frozenset(
    {
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
        "socket.__new__",
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "time.sleep",
    }
)
_watching = threading.local()
_hooked = False


class NotVirtual(RuntimeError):
    """Something that virtual time has no place for: a thread, an executor, a socket, a child process."""


def _forbidden(what: str) -> Any:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise NotVirtual(f"{what} has no place in virtual time; reach the world through the actor's port")

    return refuse


class ConfinedLoop(asyncio.AbstractEventLoop):
    """An event loop without what comes from outside."""

    call_soon_threadsafe = _forbidden("another thread")
    run_in_executor = _forbidden("an executor")
    set_default_executor = _forbidden("an executor")
    add_reader = _forbidden("a file descriptor")
    add_writer = _forbidden("a file descriptor")
    add_signal_handler = _forbidden("a signal")
    create_connection = _forbidden("a socket")
    create_server = _forbidden("a socket")
    create_unix_connection = _forbidden("a socket")
    create_unix_server = _forbidden("a socket")
    create_datagram_endpoint = _forbidden("a socket")
    getaddrinfo = _forbidden("a socket")
    sock_connect = _forbidden("a socket")
    sock_recv = _forbidden("a socket")
    sock_sendall = _forbidden("a socket")
    sock_accept = _forbidden("a socket")
    subprocess_exec = _forbidden("a child process")
    subprocess_shell = _forbidden("a child process")
    connect_read_pipe = _forbidden("a pipe")
    connect_write_pipe = _forbidden("a pipe")


@contextmanager
def watched(loop: ConfinedLoop) -> Iterator[None]:
    """While `loop` runs in this thread, refuse what goes behind its back."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_audit)
    _watching.loop = loop
    try:
        yield
    finally:
        _watching.loop = None


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN_EVENTS and getattr(_watching, "loop", None) is not None:
        raise NotVirtual(f"{event} has no place in virtual time; reach the world through the actor's port")
