"""The policy for system calls, as numbers and as a program for the kernel."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from env import seccomp
from env.zygote import PROGRAM_DESCRIPTORS

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
X86_64, I386 = 0xC000003E, 0x40000003
ALLOW, KILL = 0x7FFF0000, 0x80000000


def refused(error: int) -> int:
    return 0x00050000 | error


def judge(program: bytes, number: int, first: int = 0, architecture: int = X86_64) -> int:
    """What the kernel's classic BPF machine would return (linux/filter.h), for the instructions in use."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, first & (1 << 64) - 1, 0, 0, 0, 0, 0)
    code = list(struct.iter_unpack("<HBBI", program))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
        at += if_true if tests[operation] else if_false


@pytest.mark.skipif(not HEADER.is_file(), reason=f"the C library's headers are not installed ({HEADER})")
def test_numbers_are_those_of_the_kernel():
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    numbers["umount"] = numbers["umount2"]
    assert {rule.name: rule.number for rule in seccomp.RULES} == {
        rule.name: int(numbers[rule.name]) for rule in seccomp.RULES
    }


def test_the_program_refuses_what_the_table_says_and_nothing_else():
    program = seccomp.bpf(seccomp.RULES)
    unconditional = {rule.number: rule.error for rule in seccomp.RULES if rule.argument is None}
    conditional = {rule.number for rule in seccomp.RULES if rule.argument is not None}
    for number in range(600):
        if number not in conditional:
            expected = refused(unconditional[number]) if number in unconditional else ALLOW
            assert judge(program, number) == expected, number


@pytest.mark.parametrize(
    ("number", "first", "verdict"),
    [
        (41, 1, ALLOW),  # socket(AF_UNIX)
        (41, 2, refused(101)),
        (41, (1 << 32) | 2, refused(101)),
        (56, 17, ALLOW),  # clone(SIGCHLD): a fork
        (56, 0x00010000 | 0x00000100, ALLOW),  # a thread
        (56, 0x10000000 | 17, refused(1)),  # CLONE_NEWUSER
        (56, 0x00020000, refused(1)),  # CLONE_NEWNS
        (302, 0, ALLOW),  # prlimit64 of oneself
        (302, 1, refused(1)),
        (435, 0, refused(38)),  # clone3
    ],
)
def test_arguments_decide(number: int, first: int, verdict: int):
    assert judge(seccomp.bpf(seccomp.RULES), number, first) == verdict


def test_other_architectures_are_ended_and_x32_is_refused():
    assert judge(seccomp.bpf(), 20, architecture=I386) == KILL
    assert judge(seccomp.bpf(), 0x40000000 | 1) == refused(38)


def test_a_zygote_may_enter_only_descriptors_that_no_program_can_have():
    assert PROGRAM_DESCRIPTORS <= seccomp.LOWEST_FOR_SETNS
    for descriptor in (0, 3, PROGRAM_DESCRIPTORS - 1, seccomp.LOWEST_FOR_SETNS - 1):
        assert judge(seccomp.bpf(), 308, descriptor) == refused(1)
    assert judge(seccomp.bpf(), 308, seccomp.LOWEST_FOR_SETNS) == ALLOW


def test_both_languages_hold_every_rule():
    text = seccomp.kafel()
    assert all(re.search(rf"\b{rule.name}\b", text) for rule in seccomp.RULES)
