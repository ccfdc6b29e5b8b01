from __future__ import annotations

import asyncio

import pytest

from actors.system.frame_faults import FrameFaults
from actors.system.links import PeerUnreachable


class Inbox:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    async def deliver(self, frame: bytes) -> bytes:
        self.frames.append(frame)
        return b"ack " + frame


async def test_frames_pass_untouched_until_a_fault_is_asked_for_and_after_it_is_over() -> None:
    faults, inbox = FrameFaults(), Inbox()
    assert await faults.pass_on(b"1", inbox.deliver) == b"ack 1"
    hit = asyncio.ensure_future(faults.hit("double", 2, 0.0))
    await asyncio.sleep(0)
    for frame in (b"2", b"3", b"4"):
        assert await faults.pass_on(frame, inbox.deliver) == b"ack " + frame
    await hit
    assert inbox.frames == [b"1", b"2", b"2", b"3", b"3", b"4"]


async def test_a_dropped_frame_never_arrives_and_its_sender_does_not_know() -> None:
    faults, inbox = FrameFaults(), Inbox()
    hit = asyncio.ensure_future(faults.hit("drop", 1, 0.0))
    await asyncio.sleep(0)
    with pytest.raises(PeerUnreachable):
        await faults.pass_on(b"1", inbox.deliver)
    await hit
    assert await faults.pass_on(b"1", inbox.deliver) == b"ack 1"
    assert inbox.frames == [b"1"]


async def test_a_late_frame_is_overtaken() -> None:
    faults, inbox = FrameFaults(), Inbox()
    hit = asyncio.ensure_future(faults.hit("delay", 1, 0.05))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(faults.pass_on(b"late", inbox.deliver))
    await hit
    await faults.pass_on(b"next", inbox.deliver)
    assert await late == b"ack late"
    assert inbox.frames == [b"next", b"late"]
