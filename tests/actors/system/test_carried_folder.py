"""Folders that go to other machines."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.system import carried_folder
from actors.system.carried_folder import CACHE_VARIABLE, FolderNotCarried, cache_folder, pack, read_pieces, unpacked


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "large").write_bytes(os.urandom(300_000))
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "program").chmod(0o755)
    (folder / "link").symlink_to("sub/large")
    os.utime(folder / "program", (1_000_000_000, 1_000_000_000))
    return folder


async def pieces_of(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, tuple]:
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            path.lstat().st_mode if not path.is_symlink() else 0,
            int(path.lstat().st_mtime) if path.is_file() and not path.is_symlink() else 0,
        )
        for path in folder.rglob("*")
    }


async def test_a_folder_arrives_as_it_was_with_times_and_modes(folder: Path, cache: Path) -> None:
    archive = io.BytesIO()
    digest = pack(folder, archive)
    arrived = await unpacked(digest, pieces_of(archive.getvalue()))
    assert arrived == cache / digest
    assert contents(arrived) == contents(folder)
    assert names(cache) == {digest, f"{digest}.lock"}


async def test_what_is_there_is_not_asked_for_again(folder: Path) -> None:
    archive = io.BytesIO()
    digest = pack(folder, archive)
    await unpacked(digest, pieces_of(archive.getvalue()))

    async def nothing() -> AsyncIterator[bytes]:
        raise AssertionError("it was asked for")
        yield b""

    assert (await unpacked(digest, nothing())).is_dir()


async def test_two_who_want_the_same_folder_at_once_both_get_it(folder: Path, cache: Path) -> None:
    archive = io.BytesIO()
    digest = pack(folder, archive)
    both = await asyncio.gather(*[unpacked(digest, pieces_of(archive.getvalue())) for _ in range(2)])
    assert both == [cache / digest] * 2
    assert contents(both[0]) == contents(folder)


def test_the_digest_follows_the_content(folder: Path) -> None:
    first = pack(folder, io.BytesIO())
    assert pack(folder, io.BytesIO()) == first
    (folder / "program").write_text("#!/bin/sh\necho\n")
    os.utime(folder / "program", (1_000_000_000, 1_000_000_000))
    assert pack(folder, io.BytesIO()) != first


async def test_a_damaged_or_wrong_archive_leaves_nothing(folder: Path, cache: Path) -> None:
    archive = io.BytesIO()
    digest = pack(folder, archive)
    data = archive.getvalue()
    for pieces, name in [(data[:-1000], digest), (data, "0" * 64), (b"nonsense", digest)]:
        with pytest.raises(FolderNotCarried):
            await unpacked(name, pieces_of(pieces))
    assert {name for name in names(cache) if not name.endswith(".lock")} == set()


def test_an_archive_is_cut_into_pieces_that_make_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried_folder, "PIECE_BYTES", 7)
    data = bytes(range(50))
    pieces = list(read_pieces(io.BytesIO(data)))
    assert b"".join(pieces) == data and max(map(len, pieces)) == 7


def test_a_cache_that_others_can_write_to_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(FolderNotCarried, match="only this user"):
        cache_folder()
