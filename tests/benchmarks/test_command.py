"""A benchmark ends as a command should: with one sentence, and with whatever it had others do."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.command import ROOT, Failed, at_least, listed, output_of

CHILD = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def clean_up(*_):
    time.sleep(0.5)  # longer than subprocess.run would wait
    (folder / "cleaned").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, clean_up)
(folder / "begun").touch()
time.sleep(60)
"""
PARENT = """
import sys
from benchmarks.command import output_of, run
run(lambda: print(output_of([sys.executable, *sys.argv[1:]])))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_benchmark_after_its_child_has_cleaned_up(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "child.py"), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        while not (tmp_path / "begun").exists():
            assert parent.poll() is None
        parent.send_signal(number)
        assert parent.communicate() == ("", "interrupted\n")
    assert parent.returncode == 130
    assert (tmp_path / "cleaned").exists()


def test_what_a_child_says_is_returned_and_what_it_fails_with_is_told(tmp_path: Path) -> None:
    assert output_of([sys.executable, "-c", "print('42')"]) == "42\n"
    with (tmp_path / "log").open("w") as log, pytest.raises(Failed, match=f"ended with code 3; see {log.name}"):
        output_of([sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)"], log)
    assert (tmp_path / "log").read_text() == "no luck"


def test_what_a_user_can_mend_is_one_sentence() -> None:
    code = "from benchmarks.command import Failed, run\ndef main(): raise Failed('no model; make one')\nrun(main)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: no model; make one\n")


def test_whoever_reads_the_output_may_stop_reading() -> None:
    code = "from benchmarks.command import run\ndef main():\n    for n in range(10**5): print(n)\nrun(main)"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""


def test_options_are_checked_as_they_are_read() -> None:
    assert at_least(2)("2") == 2
    for text in ("1", "2.5", "two", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="2 or more"):
            at_least(2)(text)
    assert listed("a", "b")("b,a") == ["b", "a"] and listed("a")("") == []
    for text, why in {"a,c": "no 'c'; choose from a, b", "a,a": "'a' is there twice"}.items():
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            listed("a", "b")(text)
