"""Whatever becomes of a command's output, its work goes on, and files hold only what was written to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from orchestration.progress import Progress

PROJECT = Path(__file__).resolve().parents[2]


def python(code: str, *, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code`, its streams redirected as `shell` says; a failure is in the result."""
    command = f'exec "$0" -c "$1" {shell}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, textwrap.dedent(code)],
        cwd=PROJECT,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_stream_that_is_closed_does_not_lend_its_number_to_a_file(tmp_path: Path) -> None:
    """Nor does it take what another program prints."""
    kept = tmp_path / "kept"
    done = python(
        f"""
        import os, subprocess, sys
        from orchestration.terminal import have_standard_streams
        have_standard_streams()
        with open({str(kept)!r}, "w") as file:
            os.write(1, b"of a library")
            subprocess.run(["echo", "of a program"], check=True)
            print("ours", flush=True)
            print(file.fileno() > 2, sys.stdin.read(), file=file)
        """,
        shell="<&- >&-",
    )
    assert done.returncode == 0, done.stderr
    assert kept.read_text() == "True \n"


def test_a_character_that_an_output_can_not_hold_is_escaped() -> None:
    code = """
    import sys
    from orchestration.terminal import have_standard_streams
    have_standard_streams()
    print("38.3% (32.5–44.4)")
    print("\\udc80", file=sys.stderr)
    """
    done = python(code, PYTHONIOENCODING="ascii")
    assert (done.stdout, done.stderr) == ("38.3% (32.5\\u201344.4)\n", "\\udc80\n")


def test_a_locale_whose_text_is_not_utf_8_is_refused_with_what_helps() -> None:
    code = "from orchestration.cli import main; main()"
    done = python(code, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    assert done.returncode == 2 and "has to be UTF-8; set PYTHONUTF8=1" in done.stderr
    assert "has to be" not in python(code, LC_ALL="C").stderr, "Python itself takes UTF-8 there"


def test_the_work_goes_on_when_nobody_reads_its_progress_any_more() -> None:
    code = """
    import sys
    from orchestration.progress import Progress
    with Progress() as progress:
        for _ in range(20_000):
            progress.note("more than a pipe holds" * 4)
    print("done", file=sys.stderr)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == "nothing more is shown, and the work goes on: Broken pipe\ndone\n"
    assert child.wait() == 0


def test_the_work_goes_on_when_its_log_is_on_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    full = open("/dev/full", "w")
    try:
        with Progress(full) as progress:
            progress.note("lost")
            progress.start_stage("rl-1", 2)
            progress.update(1)
    finally:
        with contextlib.suppress(OSError):  # what was held back can't be written either
            full.close()
    assert capsys.readouterr().err == "nothing more is shown, and the work goes on: No space left on device\n"


def test_the_work_goes_on_when_its_terminal_is_gone(tmp_path: Path) -> None:
    code = f"""
    import sys
    from pathlib import Path
    from orchestration.progress import Progress
    with Progress() as progress:
        progress.start_stage("rl-1", 2)
        progress.update(1)
        sys.stdin.read()  # until the terminal is gone
        progress.start_stage("rl-2", 2)
        progress.update(1)
        progress.table("done", ["stage"], [["rl-2"]])
    Path({str(tmp_path / "done")!r}).touch()
    """
    master, slave = os.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=PROJECT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    assert os.read(master, 1)
    os.close(master)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait() == 0
    assert (tmp_path / "done").exists()
