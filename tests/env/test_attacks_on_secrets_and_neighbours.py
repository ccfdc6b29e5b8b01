"""Programs that look for what is not theirs, and leave things for the next. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.env.attacks import Attack, each_withstood, tries

PLANTED = "planted-4c1f0e77"
SEARCH = f"""
import ctypes, os, sys
needle = bytes(byte ^ 1 for byte in {bytes(byte ^ 1 for byte in PLANTED.encode())!r})  # or the program finds itself
libc = ctypes.CDLL(None)
reads, writes = os.pipe()
page = ctypes.c_void_p.in_dll(libc, '__libc_stack_end').value & ~4095
stack = b''
while libc.write(writes, ctypes.c_void_p(page), 4096) == 4096:  # EFAULT beyond the end
    stack, page = stack + os.read(reads, 4096), page + 4096
print(needle in stack, needle in b' '.join([*map(os.fsencode, sys.argv), *os.environb.values()]), len(stack) >= 4096)
"""
"""Looks for the planted secret in the environment, and above the stack, where the kernel puts what a process
began with."""


@pytest.fixture(scope="module", autouse=True)
def secrets() -> Iterator[None]:
    """The host's environment has what programs must not see, from before the first jail starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("RAY_ADDRESS", "host:6379")
        for name in ("RAY_AUTH_TOKEN", "GREENROOM_TOKEN", "HF_TOKEN", "WANDB_API_KEY"):
            patch.setenv(name, PLANTED)
        yield


SECRETS = [
    tries(42, "/etc/shadow", "open('/etc/shadow')", "ENOENT"),
    tries(42, "home directories", "os.listdir('/root')", "ENOENT"),
    tries(42, "/proc", "open('/proc/1/environ')", "ENOENT"),
    Attack(
        42,
        "environment",
        "import os, re\nprint(sorted(k for k in os.environ if not re.match('PYTHON|MALLOC|.*_NUM_THREADS$', k)))",
        "success",
        r"\['HOME', 'LANG', 'LD_LIBRARY_PATH', 'MPLBACKEND', 'MPLCONFIGDIR', 'PATH', 'TMPDIR'\]\n",
    ),
    Attack(
        43,
        "inherited descriptors",
        "import os\nopen_ = []\nfor fd in range(4096):\n  try: os.fstat(fd); open_.append(fd)\n  except OSError: pass\n"
        "print(open_)",
        "success",
        r"\[0, 1, 2\]\n",
        as_cell={"stdout": r"\[0, 1, 2, 255\]\n"},
    ),
    Attack(
        45,
        "patched interpreter",
        "import builtins, sys\nbuiltins.poison = sys.modules['poison'] = 1\nbuiltins.len = print",
        "success",
    ),
    tries(44, "System V shared memory", "call(29, 1234, 4096, 0o1666)", "ENOSYS"),
    tries(44, "System V semaphores", "call(64, 1234, 32000, 0o1600)", "ENOSYS"),
    tries(44, "System V messages", "call(68, 1234, 0o1600)", "ENOSYS"),
    tries(42, "private keys", "os.listdir(os.path.expanduser('~root/.ssh'))", "ENOENT"),
    Attack(
        42,
        "secrets in the host's environment",
        "import os\nprint([name for name in os.environ if name.startswith(('AWS_', 'RAY_'))])",
        "success",
        r"\[\]\n",
    ),
    Attack(42, "a planted secret", SEARCH, "success", "False False True\n"),
    tries(44, "message queue", "call(240, b'left', 0o102, 0o600, 0)", "EMFILE|EPERM|ENOSYS"),
    Attack(
        44,
        "another directory and no umask",
        "import os\nos.mkdir('left'); os.chdir('left'); os.umask(0)\nprint(os.getcwd())",
        "success",
        "/tmp/left\n",
    ),
]

TRACES = [
    Attack(
        44,
        "traces for the next call",
        "open('left', 'w').write('x'); open('/dev/shm/left', 'w'); import os; os.umask(0);",
        "success",
    ),
]

ATTACKS = [*SECRETS, *TRACES]
test_attack = each_withstood(ATTACKS)
