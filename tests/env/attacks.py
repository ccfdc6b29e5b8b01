"""What an attack is: a program that means harm, or does it by accident, and what has to come of it.

The cases are those of published sandboxes' suites and bug reports, numbered as in docs/attack-suite.md. Each runs in
both isolation modes, as a program on its own and as a cell of a session. After each one: it got one result in time, the
host is as it was, this process has not grown, and the next call on the same worker is clean.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import psutil
import pytest

from env import cgroup_hierarchy
from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, Limits, Status, ToolCall, ToolResult
from tests.env.conftest import Host, look_at_host
from tests.support.stalls import stalls

SHORT = 0.5
LONG = 30.0
ROOM_S = 0.5
"""How long after its limit a call may be answered, beyond the start of its jail and what held all of us up."""
START_S = 5.0
"""A jail's start on a busy machine; not part of the limit."""
MOST_GROWTH = 24 << 20
"""Bytes of resident memory that one case may cost this process: what it sent and what is kept of its output."""

CANARY = """
import builtins, gc, os, socket, sys
print(sorted(os.listdir('/tmp')), os.getcwd(), oct(os.umask(0o22)), sorted(os.environ) == sorted(set(os.environ)))
print(len.__name__, 'poison' in sys.modules, hasattr(builtins, 'poison'), os.listdir('/dev/shm'))
"""
CLEAN = "[] /tmp 0o22 True\nlen False False []\n"


class Attack(NamedTuple):
    """One case."""

    number: int
    """In docs/attack-suite.md."""
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
    as_cell: Mapping[str, Any] | None = {}
    """What is different if it is a cell of a session; None if it means nothing there."""
    needs_cgroup: bool = False


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


def tries(number: int, name: str, expression: str, outcome: str, **others: Any) -> Attack:
    """Tries a thing, with this outcome: a regular expression of names of errors, or `worked`."""
    return Attack(number, name, tells(expression), "success", f"({outcome})\n", **others)


def each_withstood(attacks: Iterable[Attack]) -> Callable[..., Awaitable[None]]:
    """A test that each attack comes to what it should, as a program and as a cell."""
    ways = [(attack, PYTHON_TOOL) for attack in attacks]
    ways += [(attack._replace(**attack.as_cell), JUPYTER_TOOL) for attack, _ in ways if attack.as_cell is not None]
    kinds = {PYTHON_TOOL: "program", JUPYTER_TOOL: "cell"}
    ids = [f"{attack.number:02}-{attack.name}-{kinds[tool]}" for attack, tool in ways]

    @pytest.mark.asyncio(loop_scope="module")
    @pytest.mark.parametrize(("attack", "tool"), ways, ids=ids)
    async def test_attack(interpreters: Interpreters, attack: Attack, tool: str) -> None:
        await withstand(interpreters, attack, tool)

    return test_attack


async def withstand(interpreters: Interpreters, attack: Attack, tool: str) -> None:
    """Run an attack, and check what came of it and what is left."""
    if attack.needs_cgroup and cgroup_hierarchy.find_hierarchy() is None:
        pytest.skip("no cgroup can be made here: nothing limits the memory of several processes together")
    before, resident = look_at_host(), psutil.Process().memory_info().rss
    with stalls() as held_up:
        started = time.monotonic()
        result = await interpreters.run(_call(attack, tool))
        took = time.monotonic() - started
    if tool == JUPYTER_TOOL:
        await (await interpreters.sessions()).end("attack")
    _check(attack, result)
    at_most = attack.wall_seconds + ROOM_S + held_up.seconds
    assert result.wall_seconds <= at_most and took <= at_most + START_S
    after, growth = look_at_host(), psutil.Process().memory_info().rss - resident
    assert after == before, left(before, after)
    assert growth < MOST_GROWTH, growth
    canary = await interpreters.run(_call(Attack(0, "canary", CANARY, "success"), PYTHON_TOOL))
    assert (canary.status, canary.stdout) == ("success", CLEAN)


def left(before: Host, after: Host) -> dict[str, tuple[object, object]]:
    """What differs."""
    pairs = {field.name: (getattr(before, field.name), getattr(after, field.name)) for field in fields(Host)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _call(attack: Attack, tool: str) -> ToolCall:
    limits = Limits(wall_seconds=attack.wall_seconds, memory_bytes=128 << 20, output_bytes=attack.output_bytes)
    session = "attack" if tool == JUPYTER_TOOL else ""
    return ToolCall(id=attack.name, tool=tool, code=attack.code, input=attack.stdin, limits=limits, session=session)


def _check(attack: Attack, result: ToolResult) -> None:
    assert (result.id, result.status) == (attack.name, attack.status), result
    assert re.fullmatch(attack.stdout, result.stdout), result
    assert re.search(attack.stderr, result.stderr), result
    if attack.exit_code is not None:
        assert result.exit_code == attack.exit_code, result
    if attack.signal is not None:
        assert (result.exit_code, result.signal) == (None, attack.signal), result
    assert max(len(result.stdout.encode()), len(result.stderr.encode())) <= attack.output_bytes + 2
    assert "/opt/" not in result.stderr and "greenroom" not in result.stderr
