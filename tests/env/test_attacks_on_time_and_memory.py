"""Programs that take more time or memory than they may. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from tests.env.attacks import LONG, SHORT, Attack, each_withstood, tries

TIME = [
    Attack(1, "endless loop", "while True: pass", "timeout", wall_seconds=SHORT),
    Attack(2, "endless sleep", "import time; time.sleep(1e9)", "timeout", wall_seconds=SHORT),
    Attack(3, "alarm disarmed", "import signal, time\nsignal.alarm(0)\ntime.sleep(99)", "timeout", wall_seconds=SHORT),
    Attack(
        4,
        "signals ignored",
        "import signal\nfor s in (15, 14, 24, 2, 1): signal.signal(s, signal.SIG_IGN);\nwhile True: pass",
        "timeout",
        wall_seconds=SHORT,
    ),
    Attack(
        5,
        "endless exit function",
        "import atexit\n@atexit.register\ndef f():\n  while True: pass",
        "timeout",
        wall_seconds=SHORT,
        as_cell={"status": "success", "wall_seconds": LONG},
    ),
    Attack(
        5,
        "endless finalizer",
        "class A:\n  def __del__(self):\n    while True: pass\na = A()",
        "timeout",
        wall_seconds=SHORT,
        as_cell={"status": "success", "wall_seconds": LONG},
    ),
    Attack(
        5,
        "endless thread",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(99)).start()",
        "timeout",
        wall_seconds=SHORT,
        as_cell={"status": "success", "wall_seconds": LONG},
    ),
    Attack(6, "constants that fold into bombs", "x = 9**9**9**9", "timeout", wall_seconds=SHORT),
    Attack(6, "nested parentheses", "(" * 10**6, "error", stderr="too many nested parentheses"),
    Attack(3, "own alarm", "import signal, time\nsignal.alarm(1)\ntime.sleep(9)", "killed", signal=14),
    Attack(
        7,
        "stopped at three tenths of a second",
        "import time\nprint('on')\ntime.sleep(5)",
        "timeout",
        "on\n",
        wall_seconds=0.3,
    ),
]

MEMORY = [
    Attack(8, "one string over the limit", "x = 'a' * (1 << 40)", "memory"),
    Attack(8, "touched bytes over the limit", "x = bytearray(192 << 20)", "memory"),
    Attack(9, "slow append", "x = []\nwhile True: x.append(' ' * 100_000)", "memory"),
    Attack(
        8,
        "children over the limit",
        "import os, time\nif os.fork() == 0:\n  x = b'x' * (400 << 20)\ntime.sleep(99)",
        "memory",
        wall_seconds=SHORT * 3,
        needs_cgroup=True,
    ),
    Attack(
        10, "sparse map of a terabyte", "import mmap\nmmap.mmap(-1, 1 << 40)", "error", stderr="Cannot allocate memory"
    ),
    tries(10, "memory file", "os.memfd_create('x')", "EPERM"),
    Attack(
        11,
        "shared memory over its limit, touched",
        "import mmap\nf = open('/dev/shm/x', 'w+b')\nf.truncate(20 << 20)\nm = mmap.mmap(f.fileno(), 20 << 20)\n"
        "for at in range(0, 20 << 20, 4096): m[at] = 1",
        "killed",
        signal=7,
    ),
    Attack(
        12,
        "numpy under the limit, with one thread on however many cores",
        "import numpy, threading, os\nprint(numpy.ones(3) @ numpy.ones(3), os.environ['OPENBLAS_NUM_THREADS'])",
        "success",
        "3.0 1\n",
    ),
]

ATTACKS = [*TIME, *MEMORY]
test_attack = each_withstood(ATTACKS)
