"""Folders that actors need wherever they run: packed once on the driver's node, unpacked once on every other.

Invariants:
- an unpacked folder's name is the hash of what is in it: it is never out of date, and is shared by runs;
- it appears whole or not at all: it is unpacked aside, its hash is checked, then it is renamed;
- memory stays at a piece or two, however large the folder is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

PIECE_BYTES = 64 << 20
CACHE_VARIABLE = "GREENROOM_CACHE"


class FolderNotCarried(RuntimeError):
    """A folder could not be brought to this node; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class CarriedFolder:
    """In the arguments of a part: a folder on the driver's node. The actor is given a path, of its own node."""

    path: str
    """On the driver's node."""
    home: str
    """Which node that is."""
    digest: str
    pieces: tuple[Any, ...]
    """What the store knows the pieces of the archive by."""


def cache_folder() -> Path:
    """Where folders are unpacked on this node: `GREENROOM_CACHE`, or a folder of this user's in /var/tmp, where a
    jail's user can reach it too (homes are often closed).

    Raises `FolderNotCarried` if it belongs to somebody else: whoever writes there decides what runs.
    """
    given = os.environ.get(CACHE_VARIABLE)
    folder = Path(given) if given else Path("/var/tmp") / f"greenroom-{os.getuid()}"
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # whatever the umask
    except OSError as error:
        raise FolderNotCarried(f"{folder} can't be made ({error.strerror}); set {CACHE_VARIABLE}") from error
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink():
        raise FolderNotCarried(
            f"{folder} is not a folder that only this user can write to; remove it, or set {CACHE_VARIABLE} to one"
        )
    return folder


def pack(folder: Path, archive: IO[bytes]) -> str:
    """Write a folder as a compressed tar file; returns its digest. Same names, contents and times, same digest."""
    compressor = zstandard.ZstdCompressor(level=1)
    with compressor.stream_writer(archive, closefd=False) as compressed:
        hashed = _Hashing(compressed)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(folder.rglob("*")):
                tar.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=_nobody)
    return hashed.digest()


def read_pieces(archive: IO[bytes]) -> Iterator[bytes]:
    """The archive from its start, in pieces of `PIECE_BYTES`."""
    archive.seek(0)
    while piece := archive.read(PIECE_BYTES):
        yield piece


@contextlib.contextmanager
def packed(folder: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The digest of a folder, and its archive in a file that goes away."""
    with tempfile.TemporaryFile(dir=cache_folder()) as archive:
        yield pack(folder, archive), archive


async def unpacked(digest: str, pieces: AsyncIterator[bytes]) -> Path:
    """The folder of a digest on this node; unpacked from the pieces of its archive if it is not there.

    Raises `FolderNotCarried` if the pieces are not what the digest says, or the disk is full.
    """
    final = cache_folder() / digest
    try:
        with final.with_suffix(".lock").open("w") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)  # another actor of this node may want the same
            if not final.is_dir():
                with tempfile.TemporaryFile(dir=final.parent) as archive:
                    async for piece in pieces:
                        archive.write(piece)
                    archive.seek(0)
                    await asyncio.to_thread(_unpack, archive, digest, final)
    except (OSError, tarfile.TarError, zstandard.ZstdError) as error:
        raise FolderNotCarried(f"a folder could not be unpacked in {final.parent}: {error}") from error
    return final


def _unpack(archive: IO[bytes], digest: str, final: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f"{digest[:12]}.", suffix=".partial", dir=final.parent))
    try:
        with zstandard.ZstdDecompressor().stream_reader(archive, closefd=False) as plain:
            hashed = _Hashing(plain)
            with tarfile.open(fileobj=hashed, mode="r|") as tar:
                tar.extractall(aside, filter="data")
            while hashed.read(1 << 20):  # what pads the end
                pass
        if hashed.digest() != digest:
            raise FolderNotCarried(f"what came for the folder {digest} is something else ({hashed.digest()})")
        aside.chmod(0o755)
        aside.rename(final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whose files they were is not carried. Times are: Python's bytecode is valid for one time of its source."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


class _Hashing(io.RawIOBase):
    """A file that is read or written in order, and hashed on the way."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()
