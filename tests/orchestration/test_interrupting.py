"""However often a command is told to end, it cleans up first."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestration import terminal
from orchestration.chat import commands
from orchestration.terminal import run_interruptibly


@contextmanager
def closing_terminal(action: signal.Handlers) -> Iterator[None]:
    """What a process does when its terminal closes, as whoever started it left that."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


async def interrupted_by(number: signal.Signals, impatience: int, cleaned: list[int]) -> None:
    try:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)
    finally:
        for each in range(impatience):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.02)
            cleaned.append(each)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_further_signals_do_not_cut_the_cleaning_up_short(number: signal.Signals):
    cleaned: list[int] = []
    with closing_terminal(signal.SIG_DFL), pytest.raises(SystemExit) as ended:
        run_interruptibly(interrupted_by(number, 4, cleaned))
    assert (ended.value.code, cleaned) == (130, [0, 1, 2, 3])


def test_cleaning_up_that_takes_too_long_can_be_cut_short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(terminal, "CLEANING_UP_S", 0.0)
    cleaned: list[int] = []
    with pytest.raises(SystemExit):
        run_interruptibly(interrupted_by(signal.SIGINT, 4, cleaned))
    assert cleaned == []


def test_work_started_by_nohup_outlives_its_terminal():
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.02)
        return "done"

    with closing_terminal(signal.SIG_IGN):
        assert run_interruptibly(work()) == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_is_ended_by_an_exception_so_that_it_closes_its_sandbox(number: signal.Signals):
    with closing_terminal(signal.SIG_DFL), pytest.raises(SystemExit) as ended, commands._ended_by_signals():
        os.kill(os.getpid(), number)
        signal.pause()
    assert ended.value.code == 128 + number


def test_a_chat_started_by_nohup_outlives_its_terminal():
    with closing_terminal(signal.SIG_IGN), commands._ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
