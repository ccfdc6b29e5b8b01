"""Programs that go for files: the host's, or more than they may have. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from tests.env.attacks import each_withstood, tries

ATTACKS = [
    *(
        tries(35, f"write to {place}", f"open('{place}', 'w')", "EROFS|EACCES|ENOENT|EPERM")
        for place in (
            "/x",
            "/etc/passwd",
            "/usr/lib/x",
            "/opt/libraries/x",
            "/tmp/../x",
            "/opt/python/lib/python3.12/os.py",
        )
    ),
    tries(36, "fill the scratch directory", "open('f', 'wb').write(bytes(17 << 20))", "ENOSPC"),
    tries(37, "many files", "[open(str(n), 'w').close() for n in range(10**6)]", "ENOSPC"),
    tries(38, "enormous sparse file", "open('f', 'wb').truncate(1 << 50)", "EFBIG"),
    tries(36, "shared memory over the scratch limit", "open('/dev/shm/x', 'wb').write(bytes(17 << 20))", "ENOSPC"),
    tries(54, "device files", "os.mknod('null', 0o600 | 0o020000, os.makedev(1, 3))", "EPERM"),
    tries(54, "/dev/mem", "open('/dev/mem', 'rb')", "ENOENT"),
    tries(54, "/dev/full", "open('/dev/full', 'rb')", "ENOENT"),
    tries(41, "odd paths", "open('%s' * 3000)", "ENAMETOOLONG"),
    tries(39, "link to a file of the host", "os.symlink('/etc/shadow', 's'); open('s')", "ENOENT"),
    tries(39, "hard link to a library", "os.link('/opt/python/lib/python3.12/os.py', 'os.py')", "EXDEV|EPERM|EROFS"),
    tries(39, "named pipe", "os.mkfifo('pipe')", "EPERM"),
    tries(41, "no path at all", "call(257, -100, 0, 0, 0)", "EFAULT"),
    tries(41, "path of 4352 bytes", "open('x' * 4352)", "ENAMETOOLONG"),
    tries(41, "path that is a format", "open('%s%n')", "ENOENT"),
    tries(41, "path that is no text", "open(b'\\xaa')", "ENOENT"),
]

test_attack = each_withstood(ATTACKS)
