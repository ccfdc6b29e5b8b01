"""What calls get, from real jails."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from env import cgroup_hierarchy
from env.image import Image
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.jail_processes import children_of
from env.tool_call import Limits, ToolCall
from tests.env.conftest import (
    ISOLATIONS,
    Program,
    break_jails,
    children_of_process,
    children_of_this_process,
    host_left_as_it_was,
    out_of_time,
)
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARSES_BADLY = """import json

def parse(text):
    return json.loads(text)

print('before')
parse('{')"""


async def test_output_and_the_last_expression_are_shown(run_code: Program):
    result = await run_code("x = 6\nprint('hello')\nx * 7")
    assert (result.status, result.stdout, result.stderr, result.exit_code) == ("success", "hello\n42\n", "", 0)
    assert result.reason == ""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("None", ""),
        ("print(1)", "1\n"),
        ("'a\\n'", "'a\\n'\n"),
        ("1;", ""),
        ("x = 1", ""),
        ("", ""),
        ("# only a comment", ""),
        ("from __future__ import annotations\ndef f(x: nowhere): ...\nf.__annotations__", "{'x': 'nowhere'}\n"),
        ("if True:\n    5", ""),
        ("__name__, __file__", "('__main__', 'main.py')\n"),
        ("print('a', end='')", "a"),
        ("import sys; sys.argv", "['main.py']\n"),
    ],
)
async def test_echo_is_that_of_a_notebook(run_code: Program, code: str, shown: str):
    result = await run_code(code)
    assert (result.status, result.stdout) == ("success", shown)


async def test_input_is_read_from_standard_input(run_code: Program):
    result = await run_code("a, b = map(int, input().split())\nprint(a * b, input())", stdin="6 7\nübrig\n")
    assert result.stdout == "42 übrig\n"


@pytest.mark.slow
async def test_the_sandbox_libraries_can_be_imported_and_bear_no_relation_to_the_project(run_code: Program):
    code = """
        import numpy, sympy, scipy, mpmath, pandas, networkx
        print(sympy.integrate(sympy.Symbol('x') ** 2), numpy.arange(4).sum(), mpmath.mpf(1) / 4)
        import torch
    """
    result = await run_code(textwrap.dedent(code), wall_seconds=30.0, memory_bytes=1 << 30)
    assert result.stdout == "x**3/3 6 0.25\n"
    assert result.stderr.endswith("ModuleNotFoundError: No module named 'torch'\n")


async def test_tracebacks_show_the_users_own_lines_only(run_code: Program):
    result = await run_code(
        "import json\n\ndef parse(text):\n    return json.loads(text)\n\nprint('before')\nparse('{')"
    )
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, "before\n")
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "main.py", line 7, in <module>\n'
        "    parse('{')\n"
        '  File "main.py", line 4, in parse\n'
        "    return json.loads(text)\n"
        "           ^^^^^^^^^^^^^^^^\n"
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
    )


async def test_source_lines_are_shown_wherever_the_program_went(run_code: Program):
    result = await run_code("import os\nopen('main.py', 'w').write('decoy')\nos.chdir('/')\n1 / 0")
    assert '  File "main.py", line 4, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError' in result.stderr


@pytest.mark.parametrize(
    ("code", "last_line"),
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("pritn(1)", "NameError: name 'pritn' is not defined. Did you mean: 'print'?"),
        ("raise KeyError(1) from ValueError(2)", "KeyError: 1"),
        ("def f(n): f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("raise BaseException('bare')", "BaseException: bare"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
async def test_uncaught_exceptions_are_errors(run_code: Program, code: str, last_line: str):
    result = await run_code(code)
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr.splitlines()[-1] == last_line
    assert "greenroom" not in result.stderr and "/opt/" not in result.stderr


async def test_exception_groups_are_shown_without_our_frames(run_code: Program):
    result = await run_code("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])")
    assert (result.status, result.exit_code) == ("error", 1)
    assert "ExceptionGroup: two (2 sub-exceptions)" in result.stderr and "runner" not in result.stderr


async def test_the_programs_own_excepthook_is_called(run_code: Program):
    result = await run_code("import sys\nsys.excepthook = lambda kind, e, tb: print('mine', kind.__name__)\n1 / 0")
    assert (result.status, result.stdout, result.stderr) == ("error", "mine ZeroDivisionError\n", "")


async def test_exit_functions_threads_and_finalizers_run_at_the_end(run_code: Program):
    with_exit_function = "import atexit\natexit.register(print, 'at exit');"
    with_thread = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
    with_finalizer = "class A:\n    def __del__(self): print('gone')\na = A()\na.itself = a"
    for code, shown in ((with_exit_function, "at exit\n"), (with_thread, "thread\n"), (with_finalizer, "gone\n")):
        result = await run_code(code)
        assert (result.status, result.stdout) == ("success", shown)


async def test_a_time_limit_below_a_second_is_kept_and_what_was_printed_before_it_stays(run_code: Program):
    result, limit_s = await out_of_time(run_code, "print('so far', end='')\nimport time\ntime.sleep(3600)")
    assert (result.status, result.stdout, result.exit_code, result.signal) == ("timeout", "so far", None, None)
    assert result.wall_seconds >= limit_s
    assert f"{limit_s:g} seconds" in result.reason


async def test_usage_is_measured(run_code: Program):
    code = "x = bytearray(60 << 20)\nimport time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass"
    result = await run_code(code)
    assert result.status == "success"
    assert 0.2 <= result.cpu_seconds < 2
    assert 60 << 20 <= result.peak_memory_bytes < 110 << 20


async def test_an_unknown_tool_is_an_invalid_call(interpreters: Interpreters):
    result = await interpreters.run(ToolCall(id="a", tool="bash", code="ls"))
    assert (result.id, result.status) == ("a", "invalid_call")
    assert "bash" in result.reason


async def test_calls_get_no_more_than_the_pool_grants():
    pool = Interpreters(Limits(wall_seconds=0.2), workers=1)
    try:
        result = await pool.run(ToolCall(id="a", code="while True: pass", limits=Limits(wall_seconds=100)))
        assert result.status == "timeout" and "0.2 seconds" in result.reason
    finally:
        await pool.close()


async def test_no_more_calls_run_at_once_than_there_are_workers_and_they_start_in_order(interpreters: Interpreters):
    code = "import time\nprint(time.monotonic_ns())\ntime.sleep(0.05)\nprint(time.monotonic_ns())"
    calls = [ToolCall(id=str(n), code=code) for n in range(5)]
    results = await asyncio.gather(*(interpreters.run(call) for call in calls))
    assert [result.id for result in results] == [call.id for call in calls]
    starts_and_ends = [int(time) for result in results for time in result.stdout.split()]
    assert starts_and_ends == sorted(starts_and_ends)  # one worker: each starts when the one before has ended


async def test_a_cancelled_call_ends_its_program_and_frees_its_worker(interpreters: Interpreters, run_code: Program):
    with host_left_as_it_was():
        task = asyncio.create_task(run_code("while True: pass"))
        await until(children_of_this_process)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await run_code("2")).stdout == "2\n"  # waits for the worker


async def test_a_call_cancelled_while_it_waits_never_runs(interpreters: Interpreters, run_code: Program):
    running = asyncio.create_task(run_code("import time; time.sleep(0.2); print('done')"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(run_code("print('never')"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await running).stdout == "done\n"


async def test_a_jail_that_is_killed_from_outside_is_our_failure_and_the_next_call_is_clean(isolation: IsolationKind):
    others = children_of_this_process()
    pool = Interpreters(Limits(wall_seconds=30), workers=1, isolation=isolation)
    try:
        await pool.run(ToolCall(id="0", code="1"))
        with host_left_as_it_was():
            task = asyncio.create_task(pool.run(ToolCall(id="a", code="import time; time.sleep(30)")))
            jails = await until(lambda: children_of_this_process() - others)
            await asyncio.sleep(0.2)
            for jail in jails:
                os.kill(jail, signal.SIGKILL)
            result = await task
            assert (result.status, result.exit_code) == ("sandbox_failure", None)
            assert not result.is_tool_error
            assert (await pool.run(ToolCall(id="b", code="1"))).status == "success"
    finally:
        await pool.close()


async def test_an_init_that_is_killed_from_outside_is_our_failure(isolation: IsolationKind):
    others = children_of_this_process()
    pool = Interpreters(Limits(wall_seconds=30), workers=1, isolation=isolation)
    try:
        task = asyncio.create_task(pool.run(ToolCall(id="a", code="import time; time.sleep(30)")))
        inits = await until(
            lambda: [init for jail in children_of_this_process() - others for init in children_of(jail)]
        )
        await asyncio.sleep(0.2)
        os.kill(inits[0], signal.SIGKILL)
        assert (await task).status == "sandbox_failure"
    finally:
        await pool.close()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_nsjails_own_words_are_in_the_reason_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, isolation: IsolationKind
):
    break_jails(monkeypatch)
    pool = Interpreters(Limits(), workers=1, image=Image(libraries=None), isolation=isolation)
    try:
        result = await pool.run(ToolCall(id="a", code="1"))
    finally:
        await pool.close()
    assert (result.status, result.exit_code) == ("sandbox_failure", None)
    assert "/no/such/program" in result.reason


@pytest.mark.parametrize("left", [0, 3, 4])
async def test_a_host_out_of_descriptors_is_our_failure_and_recovers(isolation: IsolationKind, left: int):
    pool = Interpreters(Limits(wall_seconds=30), workers=1, isolation=isolation)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        await pool.run(ToolCall(id="0", code="1"))
        with host_left_as_it_was():
            taken = {int(name) for name in os.listdir("/proc/self/fd")}
            resource.setrlimit(resource.RLIMIT_NOFILE, ([n for n in range(soft) if n not in taken][left], hard))
            try:
                result = await pool.run(ToolCall(id="a", code="1"))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (result.status, result.is_tool_error) == ("sandbox_failure", False)
            assert (await pool.run(ToolCall(id="b", code="1"))).status == "success"
    finally:
        await pool.close()


async def test_closing_ends_what_runs_and_leaves_nothing():
    with host_left_as_it_was():
        pool = Interpreters(Limits(), workers=2)
        tasks = [asyncio.create_task(pool.run(ToolCall(id=str(n), code="while True: pass"))) for n in range(4)]
        await asyncio.sleep(0.5)
        await pool.close()
        assert {(await task).status for task in tasks} == {"sandbox_failure"}
        with pytest.raises(RuntimeError, match="closed"):
            await pool.run(ToolCall(id="late", code="1"))


HOST = """
import asyncio
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.tool_call import Limits, ToolCall

code = "import os, time\\nif os.fork() == 0: os.setsid()\\nwhile True: time.sleep(0.01)"

async def main():
    pool = Interpreters(Limits(), workers=2, run_id="killed")
    await pool.run(ToolCall(id="0", code="1"))
    print("ready", flush=True)
    await asyncio.gather(*(pool.run(ToolCall(id=str(n), code=code)) for n in range(2)))

asyncio.run(main())
"""


def _start_host() -> subprocess.Popen[bytes]:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE)
    assert host.stdout is not None and host.stdout.readline() == b"ready\n"
    host.stdout.close()
    return host


async def test_everything_ends_with_a_host_process_that_is_killed():
    with host_left_as_it_was():
        host = _start_host()

        def jails_and_inits() -> list[int]:
            jails = children_of_process(host.pid)
            inits = [init for jail in jails for init in children_of(jail)]
            return [*jails, *inits] if len(inits) == 2 else []

        processes = await until(jails_and_inits)
        await asyncio.sleep(0.1)
        host.kill()
        host.wait()
        await until(lambda: not any(_is_alive(pid) for pid in processes))
        pool = Interpreters(Limits(), workers=1, run_id="killed")  # its start sweeps
        await pool.run(ToolCall(id="0", code="1"))
        await pool.close()
    assert not any(f"@{host.pid}-" in path for path in _all_cgroups())


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _all_cgroups() -> list[str]:
    hierarchy = cgroup_hierarchy.find_hierarchy()
    return [str(path) for folder in (hierarchy.folders if hierarchy else ()) for path in folder.glob("greenroom/*")]
