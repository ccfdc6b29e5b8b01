"""The Python of the documentation, taken out of its pages and run in a folder of somebody else's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def example(page: str, words: str) -> str:
    """The one indented block of a page of docs/ that holds these words."""
    text = (PROJECT / "docs" / page).read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:(?: {4}.*)?\n)+", text)]
    (found,) = [block for block in blocks if words in block]
    return found


def coroutine(block: str) -> str:
    """A script that runs a block with `await` in it."""
    return f"import asyncio\n\nasync def main():\n{textwrap.indent(block, '    ')}\n\nasyncio.run(main())\n"


def run(folder: Path, *command: str, project: Path = PROJECT) -> str:
    """What a command of Python printed that ran in a folder with nothing of the project's but its packages."""
    environment = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_pytest(folder: Path) -> str:
    """With the modes that pytest-asyncio has unless a project says otherwise."""
    return run(folder, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")
