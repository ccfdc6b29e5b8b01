"""What the processes of a jail of zygotes are given to run: code and settings, marshalled, in sealed memory."""

from __future__ import annotations

import functools
import marshal
import os

from env import forked_heap, preload, runner, seccomp, warden, zygote
from env.jail import compiled
from env.streams import sealed


@functools.cache
def nothing() -> int:
    """/dev/null, open for the life of this process."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def bundle() -> int:
    """What the jail's processes run, marshalled, in sealed memory; open for the life of this process."""
    codes = {module.__name__.removeprefix("env."): compiled(module) for module in (forked_heap, runner, warden, zygote)}
    settings = {
        "filter": seccomp.bpf(),
        "lowest_for_setns": seccomp.LOWEST_FOR_SETNS,
        "base": preload.BASE,
        "warm_ups": preload.WARM_UPS,
    }
    return sealed("zygote", marshal.dumps((codes, settings)))
