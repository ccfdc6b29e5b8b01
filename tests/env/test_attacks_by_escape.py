"""Programs that want out: to the host, to others, to rights that they gave up. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from tests.env.attacks import Attack, each_withstood, tells, tries

ATTACKS = [
    tries(46, "ptrace init", "call(101, 16, 1, 0, 0)", "EPERM"),
    tries(46, "read init's memory", "call(310, 1, 0, 0, 0, 0, 0)", "EPERM"),
    tries(46, "write init's memory", "call(311, 1, 0, 0, 0, 0, 0)", "EPERM"),
    tries(46, "take init's descriptor", "call(438, os.pidfd_open(1), 4, 0)", "EPERM"),
    Attack(
        46,
        "limit init",
        "import resource\n" + tells("resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))"),
        "success",
        "EPERM\n",
    ),
    Attack(
        47,
        "kill everything",
        "import os\ntry: os.kill(-1, 9)\nexcept ProcessLookupError: pass\nprint('still here')",
        "success",
        "still here\n",
    ),
    Attack(47, "kill its group", "import os\nos.killpg(0, 9)", "killed", signal=9),
    Attack(
        47,
        "kill init",
        "import os, time\nfor s in range(1, 32):\n  try: os.kill(1, s)\n  except PermissionError: pass\n"
        "time.sleep(0.1)\nprint('still here')",
        "success",
        "still here\n",
    ),
    tries(48, "mount", "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM"),
    tries(48, "umount", "call(166, b'/tmp', 2)", "EPERM"),
    tries(48, "pivot_root", "call(155, b'/tmp', b'/tmp')", "EPERM"),
    tries(48, "chroot", "os.chroot('/tmp')", "EPERM"),
    tries(48, "new user namespace", "os.unshare(os.CLONE_NEWUSER)", "EPERM"),
    tries(48, "new user namespace by clone", "call(56, 0x10000000 | 17, 0, 0, 0, 0)", "EPERM"),
    tries(48, "new user namespace by clone3", "call(435, 0, 0)", "ENOSYS"),
    tries(48, "enter a namespace", "os.setns(0)", "EPERM"),
    tries(49, "become root", "os.setuid(0)", "EPERM|EINVAL"),
    tries(49, "regain capabilities", "call(157, 47, 2, 0, 0, 0)", "EPERM|EINVAL"),
    tries(50, "cgroups", "os.listdir('/sys')", "ENOENT"),
    tries(51, "io_uring", "call(425, 1, 0)", "EPERM"),
    tries(51, "bpf", "call(321, 0, 0, 0)", "EPERM"),
    tries(51, "keyring", "call(250, 0, -3, 0, 0, 0)", "EPERM"),
    tries(52, "internet", "socket.create_connection(('1.1.1.1', 53), 2)", "ENETUNREACH"),
    tries(52, "loopback", "socket.create_connection(('127.0.0.1', 6379), 2)", "ENETUNREACH"),
    tries(52, "metadata service", "socket.create_connection(('169.254.169.254', 80), 2)", "ENETUNREACH"),
    tries(52, "packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "ENETUNREACH"),
    tries(52, "vsock", "socket.socket(socket.AF_VSOCK)", "ENETUNREACH"),
    Attack(
        53, "socket pair", "import socket\na, b = socket.socketpair()\na.send(b'x')\nb.recv(1)", "success", "b'x'\n"
    ),
    Attack(
        51,
        "32-bit system calls",
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())",
        "killed",
    ),
    tries(46, "write a zygote's memory", "open('/proc/1/mem', 'r+b')", "ENOENT"),
    tries(46, "write its own through /proc", "open('/proc/self/mem', 'r+b')", "ENOENT"),
    Attack(
        47,
        "kill whoever forked it",
        "import os\nparent = os.getppid()\nfor s in (15, 9):\n  try: parent and os.kill(parent, s)\n"
        "  except PermissionError: pass\nprint('still here')",
        "success",
        "still here\n",
        as_cell=None,
    ),
    Attack(
        49,
        "files that give rights",
        "import os, ctypes\nplaces = ['/lib', '/usr/lib', '/opt/python/lib/python3.12', '/opt/libraries', '/tmp']\n"
        "gives = [p for p in places if not os.statvfs(p).f_flag & os.ST_NOSUID]\n"
        "print(gives, ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))",
        "success",
        r"\[\] 1\n",
    ),
    Attack(
        52,
        "names of the internet",
        "import socket\ntry: socket.getaddrinfo('example.com', 80)\nexcept socket.gaierror: print('unknown')",
        "success",
        "unknown\n",
    ),
    tries(53, "a server of its own on the loopback", "socket.create_server(('127.0.0.1', 0))", "ENETUNREACH"),
]

test_attack = each_withstood(ATTACKS)
