"""Programs that mean harm, or do it by accident, each in a jail of its own.

The cases are those of published sandboxes' suites and bug reports. After each one: it got one result in time, the host
is as it was, and the next call on the same worker is clean.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import pytest

from env.tool_call import Limits, Status
from tests.env.conftest import ROOM_S, Program, host_left_as_it_was

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = 0.5
LONG = 10.0
START_S = 5.0
"""A jail's start on a busy machine; not part of the limit."""

CANARY = """
import builtins, gc, os, socket, sys
print(sorted(os.listdir('/tmp')), os.getcwd(), oct(os.umask(0o22)), sorted(os.environ) == sorted(set(os.environ)))
print(len.__name__, 'poison' in sys.modules, hasattr(builtins, 'poison'), os.listdir('/dev/shm'))
"""
CLEAN = "[] /tmp 0o22 True\nlen False False []\n"


class Case(NamedTuple):
    name: str
    code: str
    status: Status
    stdout: str = ""
    """Regular expression for all of it."""
    stderr: str = ""
    """Regular expression for a part of it."""
    wall_seconds: float = LONG
    exit_code: int | None = None
    signal: int | None = None
    stdin: str = ""
    output_bytes: int = Limits().output_bytes


def tells(expression: str) -> str:
    """A program that prints the errno of trying something, or that it worked."""
    return f"""
import ctypes, os, socket, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) == -1:
        raise OSError(ctypes.get_errno(), '')
try:
    {expression}
    print('worked')
except OSError as error:
    print(errno.errorcode[error.errno])
"""


CPU_AND_TIME = [
    Case("endless loop", "while True: pass", "timeout", wall_seconds=SHORT),
    Case("endless sleep", "import time; time.sleep(1e9)", "timeout", wall_seconds=SHORT),
    Case("alarm disarmed", "import signal, time\nsignal.alarm(0)\ntime.sleep(99)", "timeout", wall_seconds=SHORT),
    Case(
        "signals ignored",
        "import signal\nfor s in (15, 14, 24, 2, 1): signal.signal(s, signal.SIG_IGN);\nwhile True: pass",
        "timeout",
        wall_seconds=SHORT,
    ),
    Case(
        "endless exit function",
        "import atexit\n@atexit.register\ndef f():\n  while True: pass",
        "timeout",
        wall_seconds=SHORT,
    ),
    Case(
        "endless finalizer",
        "class A:\n  def __del__(self):\n    while True: pass\na = A()",
        "timeout",
        wall_seconds=SHORT,
    ),
    Case(
        "endless thread",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(99)).start()",
        "timeout",
        wall_seconds=SHORT,
    ),
    Case("constants that fold into bombs", "x = 9**9**9**9", "timeout", wall_seconds=SHORT),
    Case("nested parentheses", "(" * 10**6, "error", stderr="too many nested parentheses"),
    Case("own alarm", "import signal, time\nsignal.alarm(1)\ntime.sleep(9)", "killed", signal=14),
]

MEMORY = [
    Case("one string over the limit", "x = 'a' * (1 << 40)", "memory"),
    Case("touched bytes over the limit", "x = bytearray(300 << 20)", "memory"),
    Case("slow append", "x = []\nwhile True: x.append(' ' * 100_000)", "memory"),
    Case(
        "children over the limit",
        "import os, time\nif os.fork() == 0:\n  x = b'x' * (400 << 20)\ntime.sleep(99)",
        "memory",
        wall_seconds=SHORT * 3,
    ),
    Case("sparse map of a terabyte", "import mmap\nmmap.mmap(-1, 1 << 40)", "error", stderr="Cannot allocate memory"),
    Case("memory file", tells("os.memfd_create('x')"), "success", "EPERM\n"),
]

PROCESSES = [
    Case("fork bomb", "import os\nwhile True: os.fork()", "error", stderr="Resource temporarily unavailable"),
    Case(
        "patient fork bomb",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "timeout",
        wall_seconds=SHORT,
    ),
    Case(
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "error",
        stderr="can't start new thread",
    ),
    Case("descriptor bomb", "import os\nwhile True: os.dup(0)", "error", stderr="Too many open files"),
    Case(
        "daemon that holds stdout",
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(99)\n  os._exit(0)\n"
        "print('out')",
        "success",
        "out\n",
    ),
    Case(
        "child that never ends",
        "import multiprocessing, time\nmultiprocessing.Process(target=time.sleep, args=(99,)).start()",
        "timeout",
        wall_seconds=SHORT * 2,
    ),
    Case(
        "pool",
        "import multiprocessing\nwith multiprocessing.Pool(2) as p: print(p.map(abs, [-1, 2]))",
        "success",
        r"\[1, 2\]\n",
    ),
    Case(
        "another interpreter",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import mpmath; print(1)'], check=True);",
        "success",
        "1\n",
    ),
]

EXIT = [
    Case("null pointer", "import ctypes\nctypes.string_at(0)", "killed", signal=11),
    Case("abort", "import os\nos.abort()", "killed", signal=6),
    Case("kill -9 itself", "import os\nos.kill(os.getpid(), 9)", "killed", signal=9),
    Case("terminates itself", "import os\nos.kill(os.getpid(), 15)", "killed", signal=15),
    Case("exit 1", "import sys\nsys.exit(1)", "error", exit_code=1),
    Case("exit with text", "import sys\nprint('a')\nsys.exit('msg')", "error", "a\n", "^msg\n$", exit_code=1),
    Case("exit 256", "import sys\nsys.exit(256)", "success", exit_code=0),
    Case("exit 137", "import sys\nsys.exit(137)", "error", exit_code=137),
    Case("exit 255", "import sys\nsys.exit(255)", "error", exit_code=255),
    Case("exit()", "print('a')\nexit()", "success", "a\n", exit_code=0),
    Case("exit None", "raise SystemExit", "success", exit_code=0),
    Case("exit at once", "import os\nos._exit(0)", "success", exit_code=0),
    Case("bare exception", "class E(BaseException): pass\nraise E", "error", stderr="E\n$", exit_code=1),
]

OUTPUT = [
    Case("endless prints", "while True: print('x' * 99)", "output_limit", "(x|\n){65536}"),
    Case("endless errors", "import os\nwhile True: os.write(2, b'x' * 999)", "output_limit", stderr="^x{65536}$"),
    Case(
        "much on both streams",
        "import os\nfor _ in range(100):\n  os.write(1, b'o' * 10**6)\n  os.write(2, b'e' * 10**6)",
        "output_limit",
        "o*",
    ),
    Case("just the cap", "print('x' * 65535)", "success", "x{65535}\n"),
    Case("just over the cap", "print('x' * 65536)", "output_limit", "x{65536}"),
    Case(
        "more than a pipe holds",
        "print('x' * 199_999)",
        "success",
        "x{199999}\n",
        output_bytes=200_000,
    ),
    Case("bytes that are no text", "import os\nos.write(1, b'\\xff');", "success", "\ufffd"),
    Case("NULs", "print('a\\0b')", "success", "a\0b\n"),
    Case(
        "what looks like a report", "print('ended 0 0 0')\nraise SystemExit(3)", "error", "ended 0 0 0\n", exit_code=3
    ),
    Case(
        "forged report on any descriptor",
        "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'ended 0 1 1\\n')\n  except OSError: pass\n"
        "raise SystemExit(3)",
        "error",
        exit_code=3,
    ),
    Case("closed streams", "import os, sys\nos.close(1); os.close(2)", "success"),
]

INPUT = [
    Case("no input", "input()", "error", stderr="EOFError: EOF when reading a line\n$"),
    Case("much input, unread", "print('done')", "success", "done\n", stdin="x" * (10 << 20)),
    Case(
        "input is not to be written",
        "import os\ntry: os.write(0, b'x')\nexcept OSError: print('no')",
        "success",
        "no\n",
        stdin="y",
    ),
    Case("NUL in code", "print(1)\0", "error", stderr="SyntaxError: source code"),
    Case("half a character in code", "print('\udc80')", "error", stderr="SyntaxError"),
]

FILES = [
    *(
        Case(f"write to {place}", tells(f"open('{place}', 'w')"), "success", "(EROFS|EACCES|ENOENT|EPERM)\n")
        for place in (
            "/x",
            "/etc/passwd",
            "/usr/lib/x",
            "/opt/libraries/x",
            "/tmp/../x",
            "/opt/python/lib/python3.12/os.py",
        )
    ),
    Case("fill the scratch directory", tells("open('f', 'wb').write(bytes(17 << 20))"), "success", "ENOSPC\n"),
    Case("many files", tells("[open(str(n), 'w').close() for n in range(10**6)]"), "success", "ENOSPC\n"),
    Case("enormous sparse file", tells("open('f', 'wb').truncate(1 << 50)"), "success", "EFBIG\n"),
    Case(
        "shared memory over the scratch limit",
        "x = 1\n" + tells("open('/dev/shm/x', 'wb').write(bytes(17 << 20))"),
        "success",
        "ENOSPC\n",
    ),
    Case("device files", tells("os.mknod('null', 0o600 | 0o020000, os.makedev(1, 3))"), "success", "EPERM\n"),
    Case("/dev/mem", tells("open('/dev/mem', 'rb')"), "success", "ENOENT\n"),
    Case("/dev/full", tells("open('/dev/full', 'rb')"), "success", "ENOENT\n"),
    Case("odd paths", tells("open('%s' * 3000)"), "success", "ENAMETOOLONG\n"),
    Case(
        "traces for the next call",
        "open('left', 'w').write('x'); open('/dev/shm/left', 'w'); import os; os.umask(0);",
        "success",
    ),
]

SECRETS = [
    Case("/etc/shadow", tells("open('/etc/shadow')"), "success", "ENOENT\n"),
    Case("home directories", tells("os.listdir('/root')"), "success", "ENOENT\n"),
    Case("/proc", tells("open('/proc/1/environ')"), "success", "ENOENT\n"),
    Case(
        "environment",
        "import os\nprint(sorted(k for k in os.environ if not k.endswith('_NUM_THREADS') and k[:6] != 'PYTHON'))",
        "success",
        r"\['HOME', 'LANG', 'LD_LIBRARY_PATH', 'PATH', 'TMPDIR'\]\n",
    ),
    Case(
        "inherited descriptors",
        "import os\nopen_ = []\nfor fd in range(4096):\n  try: os.fstat(fd); open_.append(fd)\n  except OSError: pass\n"
        "print(open_)",
        "success",
        r"\[0, 1, 2\]\n",
    ),
    Case(
        "patched interpreter",
        "import builtins, sys\nbuiltins.poison = sys.modules['poison'] = 1\nbuiltins.len = print",
        "success",
    ),
    Case("System V shared memory", tells("call(29, 1234, 4096, 0o1666)"), "success", "worked\n"),
    Case("what is left of it", tells("call(29, 1234, 4096, 0)"), "success", "ENOENT\n"),
]

ESCAPE = [
    Case("ptrace init", tells("call(101, 16, 1, 0, 0)"), "success", "EPERM\n"),
    Case("read init's memory", tells("call(310, 1, 0, 0, 0, 0, 0)"), "success", "EPERM\n"),
    Case("write init's memory", tells("call(311, 1, 0, 0, 0, 0, 0)"), "success", "EPERM\n"),
    Case("take init's descriptor", tells("call(438, os.pidfd_open(1), 4, 0)"), "success", "EPERM\n"),
    Case(
        "limit init",
        "import resource\n" + tells("resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))"),
        "success",
        "EPERM\n",
    ),
    Case(
        "kill everything",
        "import os\ntry: os.kill(-1, 9)\nexcept ProcessLookupError: print('still here')",
        "success",
        "still here\n",
    ),
    Case("kill its group", "import os\nos.killpg(0, 9)", "killed", signal=9),
    Case(
        "kill init",
        "import os, time\nfor s in range(1, 32):\n  try: os.kill(1, s)\n  except PermissionError: pass\n"
        "time.sleep(0.1)\nprint('still here')",
        "success",
        "still here\n",
    ),
    Case("mount", tells("call(165, b'none', b'/tmp', b'tmpfs', 0, 0)"), "success", "EPERM\n"),
    Case("umount", tells("call(166, b'/tmp', 2)"), "success", "EPERM\n"),
    Case("pivot_root", tells("call(155, b'/tmp', b'/tmp')"), "success", "EPERM\n"),
    Case("chroot", tells("os.chroot('/tmp')"), "success", "EPERM\n"),
    Case("new user namespace", tells("os.unshare(os.CLONE_NEWUSER)"), "success", "EPERM\n"),
    Case("new user namespace by clone", tells("call(56, 0x10000000 | 17, 0, 0, 0, 0)"), "success", "EPERM\n"),
    Case("new user namespace by clone3", tells("call(435, 0, 0)"), "success", "ENOSYS\n"),
    Case("enter a namespace", tells("os.setns(0)"), "success", "EPERM\n"),
    Case("become root", tells("os.setuid(0)"), "success", "(EPERM|EINVAL)\n"),
    Case("regain capabilities", tells("call(157, 47, 2, 0, 0, 0)"), "success", "(EPERM|EINVAL)\n"),
    Case("cgroups", tells("os.listdir('/sys')"), "success", "ENOENT\n"),
    Case("io_uring", tells("call(425, 1, 0)"), "success", "EPERM\n"),
    Case("bpf", tells("call(321, 0, 0, 0)"), "success", "EPERM\n"),
    Case("keyring", tells("call(250, 0, -3, 0, 0, 0)"), "success", "EPERM\n"),
    Case("internet", tells("socket.create_connection(('1.1.1.1', 53), 2)"), "success", "ENETUNREACH\n"),
    Case("loopback", tells("socket.create_connection(('127.0.0.1', 6379), 2)"), "success", "ENETUNREACH\n"),
    Case("metadata service", tells("socket.create_connection(('169.254.169.254', 80), 2)"), "success", "ENETUNREACH\n"),
    Case("packets", tells("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"), "success", "ENETUNREACH\n"),
    Case("vsock", tells("socket.socket(socket.AF_VSOCK)"), "success", "ENETUNREACH\n"),
    Case("socket pair", "import socket\na, b = socket.socketpair()\na.send(b'x')\nb.recv(1)", "success", "b'x'\n"),
    Case(
        "32-bit system calls",
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())",
        "killed",
    ),
]

CASES = [*CPU_AND_TIME, *MEMORY, *PROCESSES, *EXIT, *OUTPUT, *INPUT, *FILES, *SECRETS, *ESCAPE]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_attack(run_code: Program, case: Case):
    with host_left_as_it_was():
        started = time.monotonic()
        limits = {"wall_seconds": case.wall_seconds, "output_bytes": case.output_bytes}
        result = await run_code(case.code, case.stdin, **limits)
        took = time.monotonic() - started
        assert result.status == case.status, result
        assert re.fullmatch(case.stdout, result.stdout), result
        assert re.search(case.stderr, result.stderr), result
        if case.exit_code is not None:
            assert result.exit_code == case.exit_code, result
        if case.signal is not None:
            assert (result.exit_code, result.signal) == (None, case.signal), result
        assert result.wall_seconds <= case.wall_seconds + ROOM_S
        assert took <= case.wall_seconds + ROOM_S + START_S
        assert max(len(result.stdout.encode()), len(result.stderr.encode())) <= case.output_bytes + 2
        assert "/opt/" not in result.stderr and "greenroom" not in result.stderr
    if case.status != "success" or case in (*FILES, *SECRETS):
        canary = await run_code(CANARY)
        assert (canary.status, canary.stdout) == ("success", CLEAN)
