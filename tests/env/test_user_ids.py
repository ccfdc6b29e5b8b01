"""Users that calls run as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from env.user_ids import BLOCK, NOBODY, UserIds, block_for


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def _map(tmp_path: Path, *rows: tuple[int, int, int]) -> Path:
    file = tmp_path / "map"
    file.write_text("".join(f"{inside:>10} {outside:>10} {count:>10}\n" for inside, outside, count in rows))
    return file


def _block(number: int, file: Path) -> UserIds:
    return block_for(number, file, file)


def test_a_host_with_all_ids_gives_each_jail_its_own_block_far_from_people(tmp_path: Path):
    file = _map(tmp_path, (0, 0, 4294967295))
    blocks = [_block(number, file) for number in range(64)]
    assert len({block.outside for block in blocks}) == 64
    assert all(block.count == BLOCK and block.outside >= 1 << 29 for block in blocks)
    assert all(block.outside + block.count <= 3 << 29 and block.outside % BLOCK == 0 for block in blocks)


def test_in_a_container_blocks_lie_within_its_ids(tmp_path: Path):
    file = _map(tmp_path, (0, 1000, 1), (1, 100000, 65536))
    for number in range(200):
        block = _block(number, file)
        assert 1 <= block.outside and block.outside + block.count <= 65537


def test_too_few_ids_leave_nobodys_and_never_roots(tmp_path: Path):
    assert _block(0, _map(tmp_path, (0, 1000, 1))) == UserIds(NOBODY, 1)


def test_who_is_not_root_has_only_the_own_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert _block(0, _map(tmp_path, (0, 0, 4294967295))) == UserIds(1000, 1)
