"""Programs that go for files: the host's, or more than they may have. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

import pytest

from env.interpreters import Interpreters
from tests.env.attacks import Attack, each_way, tells, withstand

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILES = [
    *(
        Attack(35, f"write to {place}", tells(f"open('{place}', 'w')"), "success", "(EROFS|EACCES|ENOENT|EPERM)\n")
        for place in (
            "/x",
            "/etc/passwd",
            "/usr/lib/x",
            "/opt/libraries/x",
            "/tmp/../x",
            "/opt/python/lib/python3.12/os.py",
        )
    ),
    Attack(36, "fill the scratch directory", tells("open('f', 'wb').write(bytes(17 << 20))"), "success", "ENOSPC\n"),
    Attack(37, "many files", tells("[open(str(n), 'w').close() for n in range(10**6)]"), "success", "ENOSPC\n"),
    Attack(38, "enormous sparse file", tells("open('f', 'wb').truncate(1 << 50)"), "success", "EFBIG\n"),
    Attack(
        36,
        "shared memory over the scratch limit",
        "x = 1\n" + tells("open('/dev/shm/x', 'wb').write(bytes(17 << 20))"),
        "success",
        "ENOSPC\n",
    ),
    Attack(54, "device files", tells("os.mknod('null', 0o600 | 0o020000, os.makedev(1, 3))"), "success", "EPERM\n"),
    Attack(54, "/dev/mem", tells("open('/dev/mem', 'rb')"), "success", "ENOENT\n"),
    Attack(54, "/dev/full", tells("open('/dev/full', 'rb')"), "success", "ENOENT\n"),
    Attack(41, "odd paths", tells("open('%s' * 3000)"), "success", "ENAMETOOLONG\n"),
    Attack(39, "link to a file of the host", tells("os.symlink('/etc/shadow', 's'); open('s')"), "success", "ENOENT\n"),
    Attack(
        39,
        "hard link to a library",
        tells("os.link('/opt/python/lib/python3.12/os.py', 'os.py')"),
        "success",
        "(EXDEV|EPERM|EROFS)\n",
    ),
    Attack(39, "named pipe", tells("os.mkfifo('pipe')"), "success", "EPERM\n"),
    Attack(41, "no path at all", tells("call(257, -100, 0, 0, 0)"), "success", "EFAULT\n"),
    Attack(41, "path of 4352 bytes", tells("open('x' * 4352)"), "success", "ENAMETOOLONG\n"),
    Attack(41, "path that is a format", tells("open('%s%n')"), "success", "ENOENT\n"),
    Attack(41, "path that is no text", tells("open(b'\\xaa')"), "success", "ENOENT\n"),
]

ATTACKS = [*FILES]


@each_way(ATTACKS)
async def test_attack(interpreters: Interpreters, attack: Attack, tool: str):
    await withstand(interpreters, attack, tool)
