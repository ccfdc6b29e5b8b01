"""Programs that start too much, or end in odd ways. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from tests.env.attacks import LONG, SHORT, Attack, each_withstood

PROCESSES = [
    Attack(13, "fork bomb", "import os\nwhile True: os.fork()", "error", stderr="Resource temporarily unavailable"),
    Attack(
        13,
        "patient fork bomb",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "timeout",
        wall_seconds=SHORT,
    ),
    Attack(
        14,
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "error",
        stderr="can't start new thread",
    ),
    Attack(15, "descriptor bomb", "import os\nwhile True: os.dup(0)", "error", stderr="Too many open files"),
    Attack(
        16,
        "daemon that holds stdout",
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(99)\n  os._exit(0)\n"
        "print('out')",
        "success",
        "out\n",
    ),
    Attack(
        17,
        "child that never ends",
        "import multiprocessing, time\nmultiprocessing.Process(target=time.sleep, args=(99,)).start()",
        "timeout",
        wall_seconds=SHORT * 2,
        as_cell={"status": "success", "wall_seconds": LONG},
    ),
    Attack(
        18,
        "pool",
        "import multiprocessing\nwith multiprocessing.Pool(2) as p: print(p.map(abs, [-1, 2]))",
        "success",
        r"\[1, 2\]\n",
    ),
    Attack(
        18,
        "another interpreter",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import mpmath; print(1)'], check=True);",
        "success",
        "1\n",
    ),
    Attack(
        18,
        "interpreters side by side",
        "import subprocess, sys\n"
        "all_ = [subprocess.Popen([sys.executable, '-c', f'print({n})'], stdout=subprocess.PIPE) for n in range(3)]\n"
        "print([each.communicate()[0] for each in all_])",
        "success",
        r"\[b'0\\n', b'1\\n', b'2\\n'\]\n",
    ),
]

EXITS = [
    Attack(19, "null pointer", "import ctypes\nctypes.string_at(0)", "killed", signal=11),
    Attack(20, "abort", "import os\nos.abort()", "killed", signal=6),
    Attack(21, "kill -9 itself", "import os\nos.kill(os.getpid(), 9)", "killed", signal=9),
    Attack(21, "terminates itself", "import os\nos.kill(os.getpid(), 15)", "killed", signal=15),
    Attack(22, "exit 1", "import sys\nsys.exit(1)", "error", exit_code=1),
    Attack(22, "exit with text", "import sys\nprint('a')\nsys.exit('msg')", "error", "a\n", "^msg\n$", exit_code=1),
    Attack(22, "exit 256", "import sys\nsys.exit(256)", "success", exit_code=0),
    Attack(22, "exit 137", "import sys\nsys.exit(137)", "error", exit_code=137),
    Attack(22, "exit 255", "import sys\nsys.exit(255)", "error", exit_code=255),
    Attack(22, "exit()", "print('a')\nexit()", "success", "a\n", exit_code=0),
    Attack(22, "exit None", "raise SystemExit", "success", exit_code=0),
    Attack(23, "exit at once", "import os\nos._exit(0)", "success", exit_code=0),
    Attack(24, "bare exception", "class E(BaseException): pass\nraise E", "error", stderr="E\n$", exit_code=1),
]

ATTACKS = [*PROCESSES, *EXITS]
test_attack = each_withstood(ATTACKS)
