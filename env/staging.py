"""Starting jails: from a thread that sees a root file system made ready for them.

A jail's first process has a mapped user that owns nothing. It mounts with that user's rights, so it can't reach an
interpreter or libraries below a private directory such as /root. Where we are root, the launching thread therefore
has a mount namespace of its own, in which the jail's whole root is put together once at a place that everybody
can reach. That also makes a call cheaper (one mount instead of a dozen), and hides from the host
the directories that nsjail makes in /tmp. Where we aren't root, the mapped user is our own, and nsjail
assembles the root itself.

Invariants:
- the host's mounts are unchanged; the namespace ends with its threads;
- a launching thread does nothing but launch: nothing else of this process sees the staged mounts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from env.image import Image
from env.jail import Root, root_of

STAGE = "/tmp"
"""Covered by a tmpfs in the launching threads' mount namespace only."""
STAGED_ROOT = Path(STAGE) / "root"

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19
_ABOVE_TARGETS = 64
"""Descriptors are moved above this number before they are put in their places in the child."""


class Staging:
    """A mount namespace with the jail's root in it, which threads can enter."""

    def __init__(self, image: Image) -> None:
        """Raises `OSError` if a part of the image can't be mounted."""
        self.staged_root: Path | None = None
        """The ready root as launching threads see it; None if nsjail must assemble it."""
        self._namespace: int | None = None
        if os.geteuid() != 0:
            return
        failure: list[OSError] = []
        thread = threading.Thread(target=self._stage, args=(root_of(image), failure), name="greenroom-staging")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    def _stage(self, root: Root, failure: list[OSError]) -> None:
        try:
            os.unshare(os.CLONE_NEWNS)
        except PermissionError:
            return  # root without CAP_SYS_ADMIN: try as any other user would
        try:
            _assemble(root)
            self._namespace = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            self.staged_root = STAGED_ROOT
        except OSError as error:
            failure.append(error)

    def enter(self) -> None:
        """Make the calling thread see the staged root; it must not be used for anything but launching after that."""
        if self._namespace is not None:
            os.unshare(os.CLONE_FS)
            os.setns(self._namespace, os.CLONE_NEWNS)

    def close(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None


def _assemble(root: Root) -> None:
    _mount("none", "/", "", _MS_REC | _MS_SLAVE)
    sources = [os.open(bind.source, os.O_PATH | os.O_CLOEXEC) for bind in root.binds]  # before /tmp is covered
    directories = [bind.source.is_dir() for bind in root.binds]
    try:
        _mount("tmpfs", STAGE, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=1m")
        STAGED_ROOT.mkdir()
        # No nosuid or nodev on this one: nsjail mounts it over its own empty root, and then makes that path read-only
        # without naming these flags, which a user namespace must not clear. It holds directories and links only.
        _mount("tmpfs", str(STAGED_ROOT), "tmpfs", 0, "mode=755,size=1m")
        (STAGED_ROOT / "tmp").mkdir()
        for target, link in root.links:
            place = STAGED_ROOT / link.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
        for bind, source, is_directory in zip(root.binds, sources, directories, strict=True):
            _bind(source, STAGED_ROOT / bind.target.lstrip("/"), is_directory)
        _mount("none", str(STAGED_ROOT), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    finally:
        for source in sources:
            os.close(source)


def _bind(source: int, target: Path, is_directory: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_directory:
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(f"/proc/thread-self/fd/{source}", str(target), "", _MS_BIND)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID
    if not str(target).startswith(f"{STAGED_ROOT}/dev/"):
        flags |= _MS_NODEV
    _mount("none", str(target), "", flags)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2). Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"could not mount {source} on {target} for the sandbox: {os.strerror(number)}")


def spawn(command: list[str], descriptors: Mapping[int, int]) -> int:
    """Start a process with just these descriptors (its number -> ours), no environment, and a process group of its own.

    Returns its pid. posix_spawn shares our memory until the child's exec: its cost does not grow with ours.
    """
    moved: list[int] = []
    actions: list[tuple[int, int, int]] = []
    try:
        for target, source in descriptors.items():
            if source in descriptors and source != target:  # or it would be overwritten before it is copied
                source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _ABOVE_TARGETS)
                moved.append(source)
            actions.append((os.POSIX_SPAWN_DUP2, source, target))
        return os.posix_spawn(
            command[0], command, {}, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=_DEFAULTS
        )
    finally:
        for source in moved:
            os.close(source)


_DEFAULTS = (1, 2, 3, 13, 14, 15, 17)
"""SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD: whatever our process ignores, nsjail must not."""
