"""Which system calls a call's program may not make: one table, for nsjail (Kafel) and for the zygote (BPF).

Invariants:
- both isolation modes refuse the same calls with the same errors;
- a deny list over the namespaces' own protection: no reaching into init, no new namespaces, no mounts, no kernel
  interfaces that computing does not need, no network but AF_UNIX;
- calls of another architecture end the process.

Sources: seccomp(2), linux/seccomp.h, linux/filter.h; numbers from asm/unistd_64.h (x86_64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

EPERM, ENOSYS, ENETUNREACH = 1, 38, 101
NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}, linux/sched.h."""
AF_UNIX = 1


@dataclass(frozen=True)
class Argument:
    """What the lower 32 bits of an argument must be for a rule to apply."""

    index: int
    name: str
    test: Literal["differs from", "has a bit of", "is below"]
    value: int


@dataclass(frozen=True)
class Rule:
    """One system call that fails with `error`, always or for some values of an argument."""

    name: str
    number: int
    error: int = EPERM
    argument: Argument | None = None


DENIED = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount": 165,
    "umount": 166,
    "pivot_root": 155,
    "chroot": 161,
    "move_mount": 429,
    "open_tree": 428,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "unshare": 272,
    "setns": 308,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "fanotify_init": 300,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "mknod": 133,
    "mknodat": 259,
    "quotactl": 179,
    "acct": 163,
    "swapon": 167,
    "swapoff": 168,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "syslog": 103,
    "iopl": 172,
    "ioperm": 173,
    "modify_ldt": 154,
    "personality": 135,
    "settimeofday": 164,
    "clock_settime": 227,
    "clock_adjtime": 305,
    "adjtimex": 159,
    "sethostname": 170,
    "setdomainname": 171,
    "vhangup": 153,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "memfd_create": 319,
}
"""Name as Kafel has it (umount2 is `umount` there) -> number. memfd_create is a way around the scratch limit."""

RULES = (
    *(Rule(name, number) for name, number in DENIED.items()),
    Rule("prlimit64", 302, EPERM, Argument(0, "pid", "differs from", 0)),
    Rule("clone", 56, EPERM, Argument(0, "flags", "has a bit of", NAMESPACE_FLAGS)),
    Rule("socket", 41, ENETUNREACH, Argument(0, "domain", "differs from", AF_UNIX)),
    Rule("clone3", 435, ENOSYS),  # glibc falls back to clone, whose flags can be looked at
    # what System V's objects hold belongs to no process: where there is no cgroup, nothing would count it
    *(Rule(name, number, ENOSYS) for name, number in (("shmget", 29), ("semget", 64), ("msgget", 68))),
)


def kafel() -> str:
    """The policy in nsjail's language."""
    by_error: dict[int, list[str]] = {}
    for rule in RULES:
        by_error.setdefault(rule.error, []).append(f"{rule.name}{_kafel_test(rule.argument)}")
    parts = [f"ERRNO({error}) {{ {', '.join(calls)} }}" for error, calls in by_error.items()]
    return ",\n".join(parts) + "\nDEFAULT ALLOW"


def _kafel_test(argument: Argument | None) -> str:
    if argument is None:
        return ""
    name, value = argument.name, argument.value
    tests = {
        "differs from": f"{name} != {value}",
        "has a bit of": f"({name} & {value}) != 0",
        "is below": f"{name} < {value}",
    }
    return f"({name}) {{ {tests[argument.test]} }}"


LOWEST_FOR_SETNS = 300
"""A zygote enters descriptors from here on. Programs can't have such: their limit on descriptors is below."""
_SETNS = Rule("setns", DENIED["setns"], EPERM, Argument(0, "fd", "is below", LOWEST_FOR_SETNS))
ZYGOTE_RULES = tuple(_SETNS if rule.name == "setns" else rule for rule in RULES)
"""The same policy for zygotes, whose programs inherit it: to install it for each call takes half a millisecond."""

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data."""
_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def bpf(rules: Iterable[Rule] = ZYGOTE_RULES) -> bytes:
    """Rules as an array of struct sock_filter: 8 bytes an instruction, for `seccomp(SECCOMP_SET_MODE_FILTER)`.

    The kernel remembers which numbers are always allowed, so the length of the chain costs an ordinary call nothing.
    """
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, _X86_64, if_true=1),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, if_false=1),
        _instruction(_RETURN, _ERRNO | ENOSYS),
    ]
    for rule in rules:
        refusal = _instruction(_RETURN, _ERRNO | rule.error)
        argument = rule.argument
        if argument is None:
            code += [_instruction(_JUMP_EQUAL, rule.number, if_false=1), refusal]
            continue
        load = _instruction(_LOAD, _ARGUMENTS + 8 * argument.index)  # little-endian: the lower half comes first
        if argument.test == "differs from":
            test = _instruction(_JUMP_EQUAL, argument.value, if_true=1)
        elif argument.test == "has a bit of":
            test = _instruction(_JUMP_BITS, argument.value, if_false=1)
        else:
            test = _instruction(_JUMP_AT_LEAST, argument.value, if_true=1)
        allowed = _instruction(_RETURN, _ALLOW)
        code += [_instruction(_JUMP_EQUAL, rule.number, if_false=4), load, test, refusal, allowed]
    code.append(_instruction(_RETURN, _ALLOW))
    return b"".join(code)


def _instruction(operation: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """One struct sock_filter; jumps count the instructions that they skip."""
    return struct.pack("<HBBI", operation, if_true, if_false, value)
