"""Programs that write what they should not, and input that is odd. Numbers as in docs/attack-suite.md."""

from __future__ import annotations

from tests.env.attacks import Attack, each_withstood

OUTPUT = [
    Attack(25, "endless prints", "while True: print('x' * 99)", "output_limit", "(x|\n){65536}"),
    Attack(25, "endless errors", "import os\nwhile True: os.write(2, b'x' * 999)", "output_limit", stderr="^x{65536}$"),
    Attack(
        26,
        "much on both streams",
        "import os\nfor _ in range(100):\n  os.write(1, b'o' * 10**6)\n  os.write(2, b'e' * 10**6)",
        "output_limit",
        "o*",
    ),
    Attack(27, "just the cap", "print('x' * 65535)", "success", "x{65535}\n"),
    Attack(27, "just over the cap", "print('x' * 65536)", "output_limit", "x{65536}"),
    Attack(
        27,
        "more than a pipe holds",
        "print('x' * 199_999)",
        "success",
        "x{199999}\n",
        output_bytes=200_000,
    ),
    Attack(28, "bytes that are no text", "import os\nos.write(1, b'\\xff');", "success", "\ufffd"),
    Attack(29, "NULs", "print('a\\0b')", "success", "a\0b\n"),
    Attack(
        30,
        "what looks like a report",
        "print('ended 0 0 0')\nraise SystemExit(3)",
        "error",
        "ended 0 0 0\n",
        exit_code=3,
    ),
    Attack(
        31,
        "forged report on any descriptor",
        "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'ended 0 1 1\\n')\n  except OSError: pass\n"
        "raise SystemExit(3)",
        "error",
        exit_code=3,
    ),
    Attack(31, "closed streams", "import os, sys\nos.close(1); os.close(2)", "success"),
    Attack(
        30, "what looks like a mark of Code Judge's", "print('@@E')\nprint('@@E 0 1.0');", "success", "@@E\n@@E 0 1.0\n"
    ),
]

INPUT = [
    Attack(32, "no input", "input()", "error", stderr="EOFError: EOF when reading a line\n$"),
    Attack(33, "much input, unread", "print('done')", "success", "done\n", stdin="x" * (10 << 20), as_cell=None),
    Attack(
        33,
        "input is not to be written",
        "import os\ntry: os.write(0, b'x')\nexcept OSError: print('no')",
        "success",
        "no\n",
        stdin="y",
        as_cell=None,
    ),
    Attack(34, "NUL in code", "print(1)\0", "error", stderr="SyntaxError: source code"),
    Attack(34, "half a character in code", "print('\udc80')", "error", stderr="SyntaxError"),
    Attack(
        33,
        "input that is no text",
        "import sys\nprint(len(sys.stdin.read()))",
        "success",
        "5\n",
        stdin="a\0\ud800",
        as_cell=None,
    ),
]

ATTACKS = [*OUTPUT, *INPUT]
test_attack = each_withstood(ATTACKS)
