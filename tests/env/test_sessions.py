"""Sessions in real jails: cells that share names, kept apart from one another and from the host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from env import cgroup_hierarchy
from env.isolation import IsolationKind
from env.session_server import LINK
from env.tool_call import JUPYTER_TOOL, ToolCall
from tests.env.notebooks import Open, namespace, open_notebook, programs, rooms
from tests.support.waiting import until

__all__ = ["open_notebook"]


def processor_ticks(pid: int) -> int:
    """User and system time (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def test_names_stay_from_cell_to_cell_and_the_last_expression_is_shown(open_notebook: Open):
    cell = open_notebook()
    first = await cell("import math\nx = 6\ndef double(n): return 2 * n\nprint('defined')\nx")
    assert (first.status, first.stdout, first.exit_code) == ("success", "defined\n6\n", 0)
    second = await cell("print(double(x), math.floor(2.5), __name__)")
    assert (second.status, second.stdout) == ("success", "12 2 __main__\n")
    assert (await cell("x = 7;")).stdout == ""
    assert (await cell("x, _ if '_' in globals() else None")).stdout == "(7, None)\n"
    assert not any([second.restarted, second.replayed, second.session_ended])


async def test_an_error_is_shown_with_the_lines_of_all_cells_and_leaves_what_was_before_it(open_notebook: Open):
    cell = open_notebook()
    await cell("def f(n):\n    return 1 / n\n")
    result = await cell("x = 5\nf(0)\nx = 6")
    assert (result.status, result.exit_code, result.session_ended) == ("error", 1, False)
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "cell 2", line 2, in <module>\n    f(0)\n'
        '  File "cell 1", line 2, in f\n    return 1 / n\n           ~~^~~\nZeroDivisionError: division by zero\n'
    )
    assert (await cell("x")).stdout == "5\n"
    assert (await cell("import sys\nprint('a')\nsys.exit(3)")).exit_code == 3
    assert "SyntaxError" in (await cell("x = = 2")).stderr
    assert (await cell("x")).stdout == "5\n"


async def test_sessions_do_not_see_one_another(open_notebook: Open):
    cell = open_notebook()
    other = cell.other("b")
    await cell("x = 1; open('file', 'w').write('a')")
    result = await other("import os; print(os.listdir('.'), 'x' in globals(), os.path.exists('/tmp/file'))")
    assert result.stdout == "[] False False\n"
    assert (await cell("open('file').read()")).stdout == "'a'\n"


async def test_each_cell_has_its_own_deadline_and_cap(open_notebook: Open):
    cell = open_notebook()
    for limit_s in (0.8, 4.0, 20.0):  # longer ones for a machine that does other work meanwhile
        code = f"import time; time.sleep({0.4 * limit_s}); print('x' * 1500)"
        results = [await cell(code, wall_seconds=limit_s, output_bytes=2000) for _ in range(3)]
        if {result.status for result in results} == {"success"}:
            break
    assert [(result.status, len(result.stdout)) for result in results] == [("success", 1501)] * 3


async def test_between_cells_nothing_runs(open_notebook: Open):
    cell = open_notebook()
    await cell(
        "import os, threading, time\ncount = 0\ndef spin():\n  global count\n  while True: count += 1\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
        "child = os.fork()\nif not child:\n  while True: pass\n"
        "time.sleep(0.05)"
    )
    assert len(rooms()) == 3, "the keeper, the cells' process and its child"
    await until(lambda: all(fields["State"].startswith("T") for fields in rooms().values()))
    used = {pid: processor_ticks(pid) for pid in rooms()}
    await asyncio.sleep(0.2)
    assert used == {pid: processor_ticks(pid) for pid in rooms()}
    await cell("before = count")
    after = await cell("while count == before: time.sleep(0.01)\ncount > before")
    assert after.stdout == "True\n", "it goes on with the next cell"


async def test_two_cells_of_one_session_run_in_their_order(open_notebook: Open):
    cell = open_notebook(workers=2)
    calls = [cell.call(f"import time; time.sleep({0.1 * (3 - n)}); seen = [*globals().get('seen', []), {n}]; seen")
             for n in range(3)]  # fmt: skip
    results = await asyncio.gather(*[cell.interpreters.run(call) for call in calls])
    assert [result.stdout for result in results] == ["[0]\n", "[0, 1]\n", "[0, 1, 2]\n"]


async def test_the_kernel_says_from_outside_what_protects_a_session(open_notebook: Open, isolation: IsolationKind):
    cell = open_notebook()
    others = [cell, cell.other("b")]
    for one in others:
        await one("1")
    seen = rooms()
    assert len(seen) == 4, "a keeper and a process for cells each"
    for fields in seen.values():
        assert fields["Seccomp"] == "2" and fields["NoNewPrivs"] == "1" and int(fields["CapEff"], 16) == 0
        assert int(fields["CapBnd"], 16) == 0
        assert os.geteuid() != 0 or fields["Uid"].split()[0] != "0", "who is not root has no other user to give"
        assert fields["NSpid"].split()[-1] != "1"
    users = {fields["Uid"] for fields in seen.values()}
    assert len(users) == (2 if isolation == "zygote" and os.geteuid() == 0 else 1)
    spaces = {kind: {namespace(pid, kind) for pid in seen} for kind in ("pid", "mnt", "ipc", "net")}
    ours = {kind: namespace(os.getpid(), kind) for kind in spaces}
    assert {kind: len(spaces[kind]) for kind in ("pid", "mnt", "ipc")} == {"pid": 2, "mnt": 2, "ipc": 2}
    assert all(ours[kind] not in spaces[kind] for kind in spaces)
    if cgroup_hierarchy.find_hierarchy() is not None:
        assert len({cgroup(pid) for pid in seen}) == 2


async def test_no_call_has_the_user_of_a_session(open_notebook: Open, isolation: IsolationKind):
    if isolation == "jail-per-call":
        pytest.skip("all jails of calls have one user there, which owns nothing")
    if os.geteuid() != 0:
        pytest.skip("only root has other users' ids to give")
    cell = open_notebook()  # one worker, whose first user would be the first session's too
    await cell("1")
    sessions = rooms()
    call = ToolCall(id="1", code="import time; time.sleep(60)")
    running = asyncio.create_task(cell.interpreters.run(call))
    users = await until(lambda: {fields["Uid"] for pid, fields in programs().items()
                                 if pid not in sessions and int(fields["CapEff"], 16) == 0})  # fmt: skip
    assert not users & {fields["Uid"] for fields in sessions.values()}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_written_to_every_descriptor_ends_no_cell(open_notebook: Open):
    cell = open_notebook()
    forged = "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'done 1 0 0 0')\n  except OSError: pass\n"
    result = await cell(forged + "import time; time.sleep(0.2); print('to the end')\nraise SystemExit(3)")
    assert (result.stdout, result.exit_code) == ("to the end\n", 3)
    send_nothing = f"import os, socket, time\nsocket.socket(fileno=os.dup({LINK})).send(b'')\n"
    assert (await cell(send_nothing + "time.sleep(0.7); print('on')")).stdout == "on\n", "that is not the end of it"
    assert not (await cell("1")).restarted
    flood = await cell(f"import os\nwhile True: os.write({LINK}, b'ended 0')")
    assert (flood.status, flood.signal, flood.session_ended) == ("killed", 9, True), flood
    assert (await cell("1")).stdout == "1\n"


async def test_without_cgroups_limits_of_processes_stand_in(open_notebook: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cgroup_hierarchy, "find_hierarchy", lambda: None)
    cell = open_notebook()
    await cell("x = 1")
    assert (await cell("y = bytearray(64 << 20)")).status == "success"
    assert (await cell("z = bytearray(128 << 20)")).status == "memory"
    assert (await cell("import os\nwhile True: os.fork()", wall_seconds=2)).status in ("error", "timeout")
    again = await cell("x")
    assert (again.status, again.stdout) == ("success", "1\n")


async def test_what_a_cell_forked_takes_no_further_cell(open_notebook: Open):
    cell = open_notebook()
    own = (await cell("import os\nx = 1\nos.getpid()")).stdout
    assert (await cell("for _ in range(3): os.fork()\nx += 1")).status == "success"
    for _ in range(10):
        result = await cell("os.getpid()")
        assert (result.status, result.stdout, result.restarted) == ("success", own, False)
    assert (await cell("x")).stdout == "2\n"


async def test_what_is_no_cell_is_an_invalid_call(open_notebook: Open):
    pool = open_notebook().interpreters
    lost = await pool.run(ToolCall(id="1", tool=JUPYTER_TOOL, code="1"))
    fed = await pool.run(ToolCall(id="2", tool=JUPYTER_TOOL, session="a", code="1", input="x"))
    assert (lost.status, lost.reason) == ("invalid_call", "A call of 'jupyter_code' needs a session.")
    assert (fed.status, fed.reason) == ("invalid_call", "'jupyter_code' has no standard input.")


async def test_the_last_words_of_a_cell_are_its_own(open_notebook: Open):
    cell = open_notebook()
    for n in range(20):
        assert (await cell(f"import sys; print({n}); print({n}, file=sys.stderr)")).stdout == f"{n}\n"
        assert (await cell(f"import os; os.system('true'); os.write(2, b'{n}')")).stderr == f"{n}"
