"""What a room's init does, and that rooms leave nothing in the mount namespace that the next one has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from env.jail_link import Said
from env.streams import Stream, sealed
from env.tool_call import Limits
from env.zygote_jail import ZygoteJail
from env.zygotes import Zygotes
from tests.env.conftest import needs_root
from tests.env.test_zygotes import Pools, pools, run
from tests.support.waiting import until

__all__ = ["pools"]

ORPHANS = """
import os, time
read, write = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        orphan = os.fork()
        if orphan:
            os.write(write, b"%d " % orphan)
        os._exit(0)
    os.wait()
orphans = [int(pid) for pid in os.read(read, 1000).split()]
assert len(orphans) == 20
while orphans:
    try:
        os.kill(orphans[-1], 0)  # as long as it is not reaped, this works
        time.sleep(0.01)
    except ProcessLookupError:
        orphans.pop()
"""

BUSY_ORPHAN = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan == 0:
        while time.process_time() < 0.3: pass
    else:
        os.write(write, b"%d" % orphan)
    os._exit(0)
os.wait()
orphan = int(os.read(read, 100))
try:
    while True:
        os.kill(orphan, 0)  # works until init has reaped it
        time.sleep(0.01)
except ProcessLookupError:
    pass
"""


async def test_orphans_that_have_ended_are_reaped(pools: Pools):
    assert (await run(pools(), ORPHANS)).status == "success"


async def test_what_orphans_computed_is_on_their_calls_bill(pools: Pools):
    result = await run(pools(), BUSY_ORPHAN)
    assert result.status == "success" and result.cpu_seconds >= 0.3


async def test_each_room_has_an_empty_scratch_directory_and_mounts_do_not_pile_up(pools: Pools):
    pool = pools()
    counts: list[int] = []
    for _ in range(4):
        shown = await run(pool, "import os\nhandle = open('left', 'w')\nos.listdir('/tmp')")
        assert shown.stdout == "['left']\n"
        counts.append(_mounts_of_warden(pools))
    assert len(set(counts)) == 1


def _mounts_of_warden(pools: Pools) -> int:
    (warden,) = [pid for pid, status in pools.processes().items() if status["NSpid"].split()[1:] == ["1"]]
    return len(Path(f"/proc/{warden}/mountinfo").read_text().splitlines())


class Tenant:
    """Of several rooms at once."""

    def __init__(self, jail: ZygoteJail) -> None:
        self._jail = jail
        self._heard: list[Said] = []

    def hear(self, said: Said) -> None:
        self._heard.append(said)

    def lose_jail(self) -> None:
        self._heard.append(Said("lost", (), "", 0, 0, ()))

    async def told(self, word: str) -> Said:
        """The next word that was said, which must be this one."""
        await until(lambda: self._heard)
        said = self._heard.pop(0)
        assert said.word == word, said
        return said

    async def room(self) -> int:
        """A pidfd of its init."""
        self._jail.ask_for_room(Limits())
        return (await self.told("room")).descriptors[0]

    async def prints(self, init: int, user: int, code: bytes) -> str:
        """What a program prints that runs in a room."""
        out, code_fd = Stream(1000), sealed("code", code)
        descriptors = [init, code_fd, out.writer, out.writer]
        self._jail.ask_for_program(self._jail.zygotes[()], user, Limits(), descriptors)
        os.close(code_fd)
        await self.told("started")
        await self.told("ended")
        out.close_writer()
        out.drain()
        out.close()
        return out.kept.decode()

    async def leave(self, init: int) -> None:
        signal.pidfd_send_signal(init, signal.SIGKILL)
        await self.told("gone")
        os.close(init)


@needs_root
async def test_rooms_side_by_side_have_scratch_directories_of_their_own(pools: Pools):
    pool = pools()
    await run(pool, "1")
    isolation = await pool.isolation()
    assert isinstance(isolation, Zygotes)
    jail = isolation._workers[0].jail
    assert jail is not None
    tenant = jail.tenant = Tenant(jail)
    mounts = _mounts_of_warden(pools)
    first, second = await tenant.room(), await tenant.room()
    shows = b"import os\nopen('%d', 'w').close()\nprint(sorted(os.listdir('/tmp')))"
    assert await tenant.prints(first, 1, shows % 1) == "['1']\n"
    assert await tenant.prints(second, 2, shows % 2) == "['2']\n"
    assert await tenant.prints(first, 3, shows % 3) == "['1', '3']\n"
    await tenant.leave(first)
    third = await tenant.room()
    assert await tenant.prints(third, 4, shows % 4) == "['4']\n"
    assert await tenant.prints(second, 5, shows % 5) == "['2', '5']\n"
    await tenant.leave(second)
    await tenant.leave(third)
    assert _mounts_of_warden(pools) == mounts
    jail.tenant = None
    assert (await run(pool, "import os\nos.listdir('/tmp')")).stdout == "[]\n"
