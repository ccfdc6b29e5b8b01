"""How many descriptors (files, sockets, pipes) this process may have open at once."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""What a process allows itself where it may: six are kept for each worker, one is needed for each connection."""


def most_descriptors() -> int:
    """What this process could allow itself (the hard limit)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return ENOUGH if hard == resource.RLIM_INFINITY else hard


def allow_descriptors() -> int:
    """Raise the soft limit, which usually is 1024 for the sake of select(2), as far as is allowed and of use.

    Returns what it is now. Children inherit it; jails have limits of their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(most_descriptors(), ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return ENOUGH if soft == resource.RLIM_INFINITY else soft
